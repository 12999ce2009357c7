//! `csi new`: the project of a driver, from a template that is a part of this program.

mod project;
mod templates;

use std::path::{Path, PathBuf, absolute};

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgMatches, Command, value_parser};
use minijinja::Value;

use self::project::NotWritten;
use self::templates::{CHOICES, TEMPLATES, Template};
use super::output::{Stop, print};

pub(crate) const NAME: &str = "new";

/// The spec's limit for the name of a driver.
const DRIVER_NAME_MAX: usize = 63;

/// The words that no crate of a driver can have as its name: Rust's, cargo's (also those of its build directories, which
/// no program can have), and the packages that it depends on.
const RESERVED: &str = "\
abstract alloc as async await become box break const continue core crate do dyn else enum extern false final fn for \
gen if impl in let loop macro match mod move mut override priv proc-macro pub ref return self static std struct super \
test trait true try type typeof unsafe unsized use virtual where while yield build deps examples incremental \
clap csi-conformance csi-core serde serde-json tempfile tokio ureq";

const EXAMPLES: &str = "\
Examples:
  csi new files --template directory
  csi new disks --template attached --organisation storage.example.org --no-multi-writer
  csi new files --template directory --path /src/files-csi --toolkit /src/csi-toolkit";

pub(crate) fn command() -> Command {
    let templates = TEMPLATES.map(|template| PossibleValue::new(template.name).help(template.about));
    Command::new(NAME)
        .about("Make the project of a driver: its code, tests, the test kit, an image, Kubernetes manifests")
        .arg(
            Arg::new("name")
                .required(true)
                .value_name("NAME")
                .value_parser(crate_name)
                .help("The name of the crate: files makes the driver files.csi.example.org"),
        )
        .arg(
            Arg::new("template")
                .long("template")
                .required(true)
                .value_name("TEMPLATE")
                .value_parser(PossibleValuesParser::new(templates))
                .help("What the storage gives to a node"),
        )
        .arg(
            Arg::new("organisation")
                .long("organisation")
                .value_name("DOMAIN")
                .value_parser(domain)
                .default_value("example.org")
                .help("Your domain, for the names of the driver and of its image"),
        )
        .arg(
            Arg::new("path")
                .long("path")
                .value_name("DIR")
                .value_parser(value_parser!(PathBuf))
                .help("The project's directory, new or empty [default: NAME]"),
        )
        .arg(
            Arg::new("toolkit")
                .long("toolkit")
                .value_name("DIR")
                .value_parser(toolkit)
                .help("A copy of the toolkit's repository to depend on, in place of published crates"),
        )
        .next_help_heading("Without")
        .args(CHOICES.map(|choice| choice.argument()))
        .after_help(EXAMPLES)
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Stop> {
    let name = text(matches, "name");
    let organisation = text(matches, "organisation");
    let driver = format!("{name}.csi.{organisation}");
    let files = files(matches, &driver)?;
    let path = matches.get_one::<PathBuf>("path").map_or(Path::new(name), PathBuf::as_path);
    let place = path.display();
    project::write(path, &files).map_err(|error| match error {
        NotWritten::NotEmpty => {
            Stop::Usage(format!("{place} is not empty, and was not changed: give another --path"))
        }
        NotWritten::Failed(reason) => Stop::failed(&reason),
    })?;
    let image = format!("registry.{organisation}/{name}:0.1.0");
    print(&format!("{place} has the driver {driver}. In this directory:"))?;
    print("  cargo test")?;
    print(&format!("  podman build --tag {image} ."))?;
    print(&format!("  cargo run --features manifests -- manifests --image {image} --to deploy"))
}

/// The files of the project, and their texts.
fn files(matches: &ArgMatches, driver: &str) -> Result<Vec<(&'static str, String)>, Stop> {
    if driver.len() > DRIVER_NAME_MAX {
        let length = driver.len();
        return Err(Stop::Usage(format!(
            "the driver's name {driver} has {length} characters, and the spec allows {DRIVER_NAME_MAX}: give a \
             shorter NAME or --organisation"
        )));
    }
    let name = text(matches, "name");
    let template =
        Template::named(text(matches, "template")).unwrap_or_else(|| unreachable!("clap knows it"));
    let source = |folder: &str| match matches.get_one::<String>("toolkit") {
        Some(toolkit) => format!("path = '{toolkit}/{folder}'"),
        None => format!("version = \"{}\"", env!("CARGO_PKG_VERSION")),
    };
    let mut variables = template.chosen(matches)?;
    variables.extend([
        ("kind", Value::from(template.name)),
        ("name", Value::from(name)),
        ("crate_name", Value::from(name.replace('-', "_"))),
        ("organisation", Value::from(text(matches, "organisation"))),
        ("driver", Value::from(driver)),
        ("csi_core", Value::from(source("csi-core"))),
        ("csi_conformance", Value::from(source("tools/csi-conformance"))),
    ]);
    Ok(template.render(&Value::from_pairs(variables)))
}

/// The value of an argument that always has one.
fn text<'m>(matches: &'m ArgMatches, argument: &str) -> &'m str {
    matches.get_one::<String>(argument).map(String::as_str).unwrap_or_default()
}

fn crate_name(text: &str) -> Result<String, String> {
    if RESERVED.split_whitespace().any(|word| word == text) {
        return Err("Rust, cargo or a package that the driver depends on has this name".to_owned());
    }
    if !text.starts_with(|first: char| first.is_ascii_lowercase()) || !is_label(text) {
        let form = "write lower-case letters, digits and dashes, a letter first and no dash last: files-csi";
        return Err(form.to_owned());
    }
    Ok(text.to_owned())
}

fn domain(text: &str) -> Result<String, String> {
    if !text.contains('.') || !text.split('.').all(is_label) {
        return Err("write a domain in lower case, such as storage.example.org".to_owned());
    }
    Ok(text.to_owned())
}

/// Whether this is a part of a domain name, in lower case.
fn is_label(text: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(is_part)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The absolute path of a toolkit's repository, which a literal string of TOML can have.
fn toolkit(text: &str) -> Result<String, String> {
    let path = absolute(text).map_err(|error| error.to_string())?;
    let manifest = path.join("csi-core/Cargo.toml");
    if !manifest.is_file() {
        return Err(format!(
            "there is no {}: give the directory of the toolkit's repository",
            manifest.display()
        ));
    }
    let path = path.into_os_string().into_string().unwrap_or_default();
    if path.contains('\'') || path.contains(char::is_control) {
        return Err(
            "a path with quotation marks or control characters can't be written into Cargo.toml".to_owned()
        );
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str, flags: &[String]) -> Vec<(&'static str, String)> {
        let words = ["new", "files-csi", "--template", template].into_iter().map(str::to_owned);
        let matches = command().try_get_matches_from(words.chain(flags.iter().cloned())).unwrap();
        files(&matches, "files-csi.csi.example.org").unwrap()
    }

    /// A variable that no template defines, or a mistake in one, would panic.
    #[test]
    fn every_template_renders_with_everything_and_with_the_least() {
        for template in &TEMPLATES {
            let least: Vec<String> = template.choices().map(|choice| format!("--{}", choice.flag)).collect();
            assert!(!least.is_empty(), "{}", template.name);
            let everything = rendered(template.name, &[]);
            let least = rendered(template.name, &least);
            assert_ne!(everything, least, "{}", template.name);
            for (path, text) in everything.iter().chain(&least) {
                let is_text = text.ends_with('\n') && !text.contains(['\t', '\r']);
                assert!(is_text && !text.contains("{%") && !text.contains("{{"), "{path}: {text}");
            }
        }
    }

    #[test]
    fn names_that_cargo_rust_or_kubernetes_refuse_are_refused() {
        for name in ["files", "files-csi", "a", "a1"] {
            assert!(crate_name(name).is_ok(), "{name}");
        }
        for name in [
            "",
            "Files",
            "files_csi",
            "1files",
            "-files",
            "files-",
            "fi les",
            "../files",
            "match",
            "build",
            "csi-core",
            "é",
        ] {
            assert!(crate_name(name).is_err(), "{name}");
        }
        assert!(domain("storage.example.org").is_ok());
        for name in ["org", "", ".org", "example.", "a..b", "-a.org", "a-.org", "Example.org", "a_b.org"] {
            assert!(domain(name).is_err(), "{name}");
        }
    }
}
