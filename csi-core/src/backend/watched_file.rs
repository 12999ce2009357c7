//! Files that change while the driver runs: its credentials and its settings.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use zeroize::Zeroizing;

use crate::error::{Error, Reason, Result};

/// The largest Secret or ConfigMap of Kubernetes has 1 MiB.
const MAX_BYTES: u64 = 1 << 20;
/// What a read to the end wants to have free, so that it does not go through a buffer of its own.
const SPARE: usize = 64;

type Cause = Box<dyn std::error::Error + Send + Sync>;
type Parse<T> = Box<dyn Fn(&str) -> Result<T, Cause> + Send + Sync>;

/// A value that is made from a file, and made again when the file's content has changed: credentials that rotate, or
/// settings.
///
/// [`get`](Self::get) reads the file, so no restart and no watch is needed. In Kubernetes the file is a key of a
/// Secret or ConfigMap (`csi manifests --secret-files`, `--config-files`), and has the new content about a minute
/// after the object. Keys are read one by one: put what belongs together, such as a user and a password, into one
/// key.
///
/// ```
/// use std::sync::Arc;
///
/// use csi_core::Result;
/// use csi_core::backend::{SecretText, WatchedFile};
///
/// #[derive(serde::Deserialize)]
/// struct Account {
///     user: String,
///     password: SecretText,
/// }
///
/// struct Cloud {
///     token: WatchedFile<SecretText>,
///     account: WatchedFile<Account>,
/// }
///
/// impl Cloud {
///     fn new() -> Self {
///         Self {
///             token: WatchedFile::token("/etc/cloud/token"),
///             account: WatchedFile::secret("/etc/cloud/account.json", |text| serde_json::from_str(text)),
///         }
///     }
///
///     fn authorization(&self) -> Result<String> {
///         Ok(format!("Bearer {}", self.token.get()?.as_str()))
///     }
/// }
/// ```
///
/// The value can be more than what is in the file, for example an HTTP client with the credentials in it: it is
/// built again when they change.
pub struct WatchedFile<T> {
    path: PathBuf,
    parse: Parse<T>,
    /// Whether an error can show what the parser says about the content.
    is_secret: bool,
    last: Mutex<Option<Made<T>>>,
}

struct Made<T> {
    content: Zeroizing<String>,
    value: Arc<T>,
}

impl WatchedFile<SecretText> {
    /// A file with nothing but a token, a key or a password. White space at its end is not part of it.
    pub fn token(path: impl Into<PathBuf>) -> Self {
        Self::secret(path, |text| match text.trim_end() {
            "" => Err("it is empty"),
            token => Ok(SecretText::from(token.to_owned())),
        })
    }
}

impl<T> WatchedFile<T> {
    /// A file with credentials, read by `parse`. What `parse` says about wrong content is not shown to anybody: it
    /// can quote the content.
    pub fn secret<E: Into<Cause>>(
        path: impl Into<PathBuf>,
        parse: impl Fn(&str) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        Self::new(path, parse, true)
    }

    /// A file with settings and without secrets, read by `parse`. The error about wrong content has the text of
    /// `parse`'s error.
    pub fn settings<E: Into<Cause>>(
        path: impl Into<PathBuf>,
        parse: impl Fn(&str) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        Self::new(path, parse, false)
    }

    fn new<E: Into<Cause>>(
        path: impl Into<PathBuf>,
        parse: impl Fn(&str) -> Result<T, E> + Send + Sync + 'static,
        is_secret: bool,
    ) -> Self {
        let parse: Parse<T> = Box::new(move |text| parse(text).map_err(Into::into));
        Self { path: path.into(), parse, is_secret, last: Mutex::new(None) }
    }

    /// Reads the file, and returns the value that was made from this content.
    ///
    /// It blocks for the time of reading a small local file. Call it for each request to the backend, and don't keep
    /// the value.
    ///
    /// # Errors
    /// [`Error::Unhealthy`] that names the file: it can't be read, has more than 1 MiB, is not UTF-8, or its content
    /// is wrong. The value of earlier content is then not used any more, because it can be revoked.
    pub fn get(&self) -> Result<Arc<T>> {
        let content = self.read()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = last.as_ref().filter(|made| made.content == content) {
            return Ok(Arc::clone(&made.value));
        }
        *last = None;
        let value = (self.parse)(&content).map_err(|cause| self.wrong(&cause))?;
        let value = Arc::new(value);
        *last = Some(Made { content, value: Arc::clone(&value) });
        Ok(value)
    }

    fn read(&self) -> Result<Zeroizing<String>> {
        let path = self.path.display();
        let unreadable = |error: io::Error| {
            Error::Unhealthy(Reason::because(format!("can't read {path}: {error}"), error))
        };
        let file = File::open(&self.path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len().min(MAX_BYTES);
        // Room for all of it from the start: a buffer that grows leaves a copy of the secret behind.
        let mut content = Zeroizing::new(String::with_capacity(length as usize + SPARE));
        let read = file.take(MAX_BYTES + 1).read_to_string(&mut content).map_err(unreadable)?;
        if read as u64 > MAX_BYTES {
            return Err(Error::Unhealthy(format!("{path}: it has more than {MAX_BYTES} bytes").into()));
        }
        Ok(content)
    }

    fn wrong(&self, cause: &Cause) -> Error {
        let why = if self.is_secret {
            "the content is not what the driver expects; it is not shown, because it is a secret".to_owned()
        } else {
            cause.to_string()
        };
        Error::Unhealthy(format!("{}: {why}", self.path.display()).into())
    }
}

/// Shows the path only.
impl<T> fmt::Debug for WatchedFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedFile").field(&self.path).finish()
    }
}

/// A secret text: `Debug` hides it, and its memory is set to zero when it is dropped.
///
/// It can be a field of a struct that serde reads. What a parser needs meanwhile is not set to zero: serde_json keeps
/// no copy of a text without escapes.
#[derive(Clone, Deserialize)]
#[serde(from = "String")]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// The secret itself, to be sent to the backend.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    /// Puts a version of a Secret into a directory and makes it the current one, as the kubelet does: `..data` is
    /// replaced, and each key is a link below it.
    fn rotate(directory: &Path, version: &str, token: &str) {
        fs::create_dir(directory.join(version)).unwrap();
        fs::write(directory.join(version).join("token"), token).unwrap();
        symlink(version, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        if !directory.join("token").is_symlink() {
            symlink("..data/token", directory.join("token")).unwrap();
        }
    }

    #[test]
    fn a_rotated_secret_is_read_again_and_an_equal_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        rotate(directory.path(), "..1", "first\n");
        let token = WatchedFile::token(directory.path().join("token"));
        let first = token.get().unwrap();
        assert_eq!(first.as_str(), "first");
        assert!(Arc::ptr_eq(&first, &token.get().unwrap()));

        rotate(directory.path(), "..2", "first\n");
        assert!(Arc::ptr_eq(&first, &token.get().unwrap()), "other keys of the Secret have changed");
        rotate(directory.path(), "..3", "other");
        assert_eq!(token.get().unwrap().as_str(), "other", "of the same length");
    }

    #[test]
    fn a_wrong_file_is_named_and_its_secret_is_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("account");
        let parse = |text: &str| serde_json::from_str::<SecretText>(text);
        let secret = WatchedFile::secret(&path, parse);
        let settings = WatchedFile::settings(&path, parse);

        let missing = secret.get().unwrap_err().to_string();
        assert!(missing.contains("account: No such file"), "{missing}");
        fs::write(&path, "4711").unwrap();
        let wrong = secret.get().unwrap_err();
        let texts = [format!("{wrong:?}"), wrong.to_string(), wrong.with_causes(&wrong.to_string())];
        for text in texts {
            assert!(text.contains("account: the content") && !text.contains("4711"), "{text}");
        }
        assert!(settings.get().unwrap_err().to_string().contains("4711"));
        fs::write(&path, "\"canary\"").unwrap();
        let value = secret.get().unwrap();
        assert_eq!(value.as_str(), "canary");
        for text in [format!("{value:?}"), format!("{secret:?}")] {
            assert!(!text.contains("canary"), "{text}");
        }
    }

    /// A credential that was taken back must not be used because the new one can't be read.
    #[test]
    fn the_earlier_value_is_not_used_for_a_wrong_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = WatchedFile::token(&path);
        for (content, is_right) in [("a", true), ("\n", false), ("a", true)] {
            fs::write(&path, content).unwrap();
            assert_eq!(token.get().is_ok(), is_right, "{content:?}");
        }
        fs::write(&path, vec![b'x'; MAX_BYTES as usize + 1]).unwrap();
        assert!(token.get().unwrap_err().to_string().contains("more than"));
        fs::write(&path, [0xff]).unwrap();
        assert!(token.get().is_err());
        fs::remove_file(&path).unwrap();
        assert!(token.get().is_err());
    }
}
