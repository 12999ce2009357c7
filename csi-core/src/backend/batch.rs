//! One request to the backend for the objects of several calls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::error::{Error, Result};

type Answers<V> = Pin<Box<dyn Future<Output = Result<Vec<Result<V>>>> + Send>>;

/// Collects what several calls ask of the backend into one request, for an API that deletes, or describes, many
/// objects at once. A clone is the same collection.
///
/// While one request runs, the next ones are collected: so a single call is not delayed, and a burst of calls takes few
/// requests.
///
/// ```
/// # use csi_core::backend::{Backend, Batch, Failure};
/// # use csi_core::{Result, prelude::*};
/// # #[derive(Clone)]
/// # struct Api;
/// # impl Api {
/// #     /// Deletes these disks, and returns what happened to each.
/// #     async fn delete_disks(&self, ids: &[String]) -> Result<Vec<Result<()>>, Failure> { Ok(ids.iter().map(|_| Ok(())).collect()) }
/// # }
/// struct Driver {
///     deletes: Batch<String, ()>,
/// }
///
/// impl Driver {
///     fn new(api: Api, backend: Backend) -> Self {
///         let deletes = Batch::new(100, move |ids: Vec<String>| {
///             let (api, backend) = (api.clone(), backend.clone());
///             async move { backend.request(|| api.delete_disks(&ids)).await }
///         });
///         Self { deletes }
///     }
///
///     async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
///         self.deletes.request(request.volume_id.to_string()).await
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # Driver::new(Api, Backend::new()).deletes.request("d-1".into()).await }
/// ```
pub struct Batch<K, V> {
    inner: Arc<Inner<K, V>>,
}

struct Inner<K, V> {
    /// The most keys of one request.
    most: usize,
    send: Box<dyn Fn(Vec<K>) -> Answers<V> + Send + Sync>,
    queue: Mutex<Queue<K, V>>,
}

/// Keys, each with the call that waits for the answer.
type Waiting<K, V> = Vec<(K, oneshot::Sender<Result<V>>)>;

struct Queue<K, V> {
    waiting: Waiting<K, V>,
    /// Whether a task sends what waits.
    is_sent: bool,
}

impl<K: Clone + Send + 'static, V: Send + 'static> Batch<K, V> {
    /// `send` makes one request for all of these keys, `most` at a time, and returns an answer for each, in the order
    /// of the keys.
    ///
    /// Its own error can be that of one key, for which the backend refuses the others too: then each half is sent by itself,
    /// until that key is alone. An error of the backend as a whole ([`Error::Unavailable`], [`Error::OutcomeUnknown`],
    /// [`Error::Unhealthy`], [`Error::Unauthenticated`]) is the answer for all of them.
    pub fn new<F>(most: usize, send: impl Fn(Vec<K>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<Result<V>>>> + Send + 'static,
    {
        let send = Box::new(move |keys| Box::pin(send(keys)) as Answers<V>);
        let queue = Mutex::new(Queue { waiting: Vec::new(), is_sent: false });
        Self { inner: Arc::new(Inner { most: most.max(1), send, queue }) }
    }

    /// Asks for this key, together with other calls, and returns the answer for it.
    ///
    /// # Errors
    /// That of the request, or that of this key. [`Error::Internal`] if `send` panics, or does not answer for each key.
    pub async fn request(&self, key: K) -> Result<V> {
        let (answer, answered) = oneshot::channel();
        let is_sent = {
            let mut queue = self.inner.queue();
            queue.waiting.push((key, answer));
            std::mem::replace(&mut queue.is_sent, true)
        };
        if !is_sent {
            tokio::spawn(send_all(Arc::clone(&self.inner)));
        }
        answered
            .await
            .unwrap_or_else(|_| Err(Error::Internal("the request for several objects failed".into())))
    }
}

/// Sends what waits, until nothing does.
async fn send_all<K: Clone + Send + 'static, V: Send + 'static>(inner: Arc<Inner<K, V>>) {
    let mut halves = Vec::new();
    while let Some(mut waiting) = halves.pop().or_else(|| inner.next()) {
        let keys: Vec<K> = waiting.iter().map(|(key, _)| key.clone()).collect();
        let count = keys.len();
        // On a task of its own, so that a panic fails this request only. The senders that it drops are its answer.
        let request = Arc::clone(&inner);
        let Ok(answers) = tokio::spawn(async move { (request.send)(keys).await }).await else { continue };
        match answers {
            Ok(answers) if answers.len() == count => {
                for (answer, (_, sender)) in answers.into_iter().zip(waiting) {
                    // A call that was given up needs no answer.
                    let _ = sender.send(answer);
                }
            }
            Ok(answers) => {
                let text = format!("the request for {count} objects has {} answers", answers.len());
                send_error(waiting, &Error::Internal(text.into()));
            }
            Err(error) if count > 1 && can_be_of_one_key(&error) => {
                halves.push(waiting.split_off(count / 2));
                halves.push(waiting);
            }
            Err(error) => send_error(waiting, &error),
        }
    }
}

fn can_be_of_one_key(error: &Error) -> bool {
    use Error::{OutcomeUnknown, Unauthenticated, Unavailable, Unhealthy};
    !matches!(error, Unavailable(_) | OutcomeUnknown(_) | Unhealthy(_) | Unauthenticated(_))
}

fn send_error<K, V>(waiting: Waiting<K, V>, error: &Error) {
    for (_, sender) in waiting {
        let _ = sender.send(Err(error.clone()));
    }
}

impl<K, V> Inner<K, V> {
    /// The next keys to be sent. After `None` the next call starts a task again.
    fn next(&self) -> Option<Waiting<K, V>> {
        let mut queue = self.queue();
        let count = queue.waiting.len().min(self.most);
        queue.is_sent = count > 0;
        queue.is_sent.then(|| queue.waiting.drain(..count).collect())
    }

    fn queue(&self) -> MutexGuard<'_, Queue<K, V>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> Clone for Batch<K, V> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K, V> fmt::Debug for Batch<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("most", &self.inner.most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// The keys of each request.
    type Sent = Arc<Mutex<Vec<Vec<u32>>>>;

    /// Requests wait until a test lets them go on; the answer for `n` is `10 * n`, and an error for 13. A request with 66
    /// is refused, and one with 99 finds no room.
    fn gated(most: usize) -> (Batch<u32, u32>, Arc<Semaphore>, Sent) {
        let gate = Arc::new(Semaphore::new(0));
        let sent = Sent::default();
        let gate_of_send = Arc::clone(&gate);
        let sent_by = Arc::clone(&sent);
        let batch = Batch::new(most, move |keys: Vec<u32>| {
            sent_by.lock().unwrap().push(keys.clone());
            let gate = Arc::clone(&gate_of_send);
            async move {
                gate.acquire().await.map_err(Error::internal)?.forget();
                if keys.contains(&66) {
                    return Err(Error::NotPossible("66".into()));
                }
                if keys.contains(&99) {
                    return Err(Error::Unavailable("too many requests".into()));
                }
                let answer = |key| if key == 13 { Err(Error::InUse("13".into())) } else { Ok(10 * key) };
                Ok(keys.into_iter().map(answer).collect())
            }
        });
        (batch, gate, sent)
    }

    /// Starts a call for each key, in this order.
    async fn calls<I: Iterator<Item = u32>>(
        batch: &Batch<u32, u32>,
        keys: I,
    ) -> Vec<tokio::task::JoinHandle<Result<u32>>> {
        let mut calls = Vec::new();
        for key in keys {
            let batch = batch.clone();
            calls.push(tokio::spawn(async move { batch.request(key).await }));
            // On one thread the call has asked, and a task that sends has begun, before this goes on.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        }
        calls
    }

    #[tokio::test]
    async fn what_arrives_during_a_request_is_sent_together() {
        let (batch, gate, sent) = gated(4);
        let calls = calls(&batch, 10..16).await;
        gate.add_permits(10);
        for (call, key) in calls.into_iter().zip(10..16) {
            match call.await.unwrap() {
                Ok(answer) => assert_eq!(answer, 10 * key),
                Err(error) => assert!(key == 13 && matches!(error, Error::InUse(_)), "{key}: {error}"),
            }
        }
        assert_eq!(*sent.lock().unwrap(), [vec![10], vec![11, 12, 13, 14], vec![15]]);
        // And again after a time without any.
        assert_eq!(batch.request(1).await.unwrap(), 10);
    }

    /// Many APIs refuse the whole request for one key that does not exist. A delete whose volume does not exist is done, so
    /// that must not be said of the others.
    #[tokio::test]
    async fn a_key_that_the_backend_refuses_does_not_fail_the_others() {
        let (batch, gate, sent) = gated(100);
        let first = calls(&batch, 60..80).await;
        gate.add_permits(100);
        for (call, key) in first.into_iter().zip(60..80) {
            assert_eq!(call.await.unwrap().ok(), (key != 66).then_some(10 * key));
        }
        let requests = sent.lock().unwrap().len();
        assert!(requests < 12, "{sent:?}");
        gate.forget_permits(100);
        let second = calls(&batch, 90..100).await;
        gate.add_permits(100);
        for call in second {
            let _ = call.await.unwrap();
        }
        assert_eq!(sent.lock().unwrap().len(), requests + 2, "without room for requests there are no more");
    }

    #[tokio::test]
    async fn an_error_of_the_request_is_everybodys_and_a_panic_ends_only_its_own() {
        let batch: Batch<u32, u32> = Batch::new(9, |keys: Vec<u32>| async move {
            match keys[0] {
                1 => Err(Error::PermissionDenied("not allowed".into())),
                2 => panic!("as the test asked"),
                3 => Ok(vec![]),
                key => Ok(vec![Ok(key)]),
            }
        });
        assert!(matches!(batch.request(1).await, Err(Error::PermissionDenied(_))));
        assert!(matches!(batch.request(2).await, Err(Error::Internal(_))));
        let short = batch.request(3).await.unwrap_err().to_string();
        assert_eq!(short, "the request for 1 objects has 0 answers");
        assert_eq!(batch.request(4).await.unwrap(), 4);
    }

    /// The framework never gives a driver's method up, but a driver's own code can.
    #[tokio::test]
    async fn a_call_that_is_given_up_keeps_nobody_waiting() {
        let (batch, gate, sent) = gated(4);
        let mut calls = calls(&batch, 1..4).await;
        calls.remove(1).abort();
        gate.add_permits(10);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(sent.lock().unwrap().concat().len(), 3);
    }
}
