//! A driver of a cloud that works on its operations in the background, limits its callers and fails now and then. It is
//! killed around each request, and never makes a second disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_core::backend::{Backend, Batch, Failure};
use csi_core::controller::CreateRecord;
use csi_core::proto::v1;
use csi_core::records::Records;
use csi_core::{Result, prelude::*};
use tokio::sync::Notify;

const GIB: u64 = 1 << 30;

/// What the driver keeps of a volume, from before its first request on.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Stored {
    created: CreateRecord,
    /// The cloud's operation, once it has begun.
    operation: Option<String>,
    /// The cloud's disk, once it exists.
    disk: Option<String>,
}

struct Driver {
    cloud: Arc<Cloud>,
    backend: Backend,
    records: Records<Stored>,
    deletes: Batch<String, ()>,
}

impl Driver {
    fn new(cloud: &Arc<Cloud>, records: &Path) -> Result<Self> {
        let backend = Backend::new().rate(10, Duration::from_secs(1));
        let of_deletes = (Arc::clone(cloud), backend.clone());
        let deletes = Batch::new(50, move |disks: Vec<String>| {
            let (cloud, backend) = of_deletes.clone();
            async move { backend.request(|| cloud.delete_disks(&disks)).await }
        });
        Ok(Self { cloud: Arc::clone(cloud), backend, records: Records::open(records)?, deletes })
    }

    async fn load(&self, id: &VolumeId) -> Result<Option<Stored>> {
        let records = self.records.clone();
        let id = id.clone();
        blocking(move || records.get(&id)).await
    }

    async fn store(&self, id: &VolumeId, stored: &Stored) -> Result<()> {
        let records = self.records.clone();
        let id = id.clone();
        let stored = stored.clone();
        blocking(move || records.put(&id, &stored)).await
    }

    /// The disk of a volume; waits until it exists.
    async fn disk(&self, id: &VolumeId, stored: &mut Stored) -> Result<String> {
        if let Some(disk) = &stored.disk {
            return Ok(disk.clone());
        }
        let operation = match &stored.operation {
            Some(operation) => operation.clone(),
            None => {
                let size = stored.created.capacity_bytes();
                // The id is the key by which the cloud knows a repeated request.
                let begun = self.backend.request(|| self.cloud.begin_disk(id.as_str(), size)).await?;
                stored.operation = Some(begun.clone());
                self.store(id, stored).await?;
                begun
            }
        };
        let disk = self.backend.poll(|| self.cloud.disk_of(&operation)).await?;
        stored.disk = Some(disk.clone());
        self.store(id, stored).await?;
        Ok(disk)
    }
}

#[async_trait]
impl Controller for Driver {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.load(id).await?.map(|stored| stored.created.volume(id.clone())))
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        let mut stored = match self.load(&id).await? {
            Some(stored) => stored,
            None => {
                let size = request.capacity_range.choose(10 * GIB, GIB)?;
                let created = CreateRecord::requested(&request, size);
                let stored = Stored { created, operation: None, disk: None };
                self.store(&id, &stored).await?;
                stored
            }
        };
        stored.created.check(&request)?;
        self.disk(&id, &mut stored).await?;
        Ok(stored.created.volume(id))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let id = request.volume_id;
        let Some(mut stored) = self.load(&id).await? else { return Err(Error::VolumeNotFound(id)) };
        let disk = self.disk(&id, &mut stored).await?;
        self.deletes.request(disk).await?;
        let records = self.records.clone();
        blocking(move || records.remove(&id)).await.map(drop)
    }
}

/// A cloud in memory. An operation ends at its third poll.
#[derive(Default)]
struct Cloud {
    state: Mutex<State>,
    crashed: Notify,
}

#[derive(Default)]
struct State {
    /// The operation of each key.
    operations: BTreeMap<String, Operation>,
    disks: Vec<String>,
    /// The number of disks in each request that deletes.
    deletes: Vec<usize>,
    /// How many requests are refused before one is worked on.
    refusals: u32,
    /// How many steps pass until the driver is killed.
    steps_left: Option<u32>,
}

#[derive(Default)]
struct Operation {
    polls: u32,
}

impl Cloud {
    /// A moment at which the driver can be killed: then its call never goes on.
    async fn step(&self) {
        let is_killed = {
            let mut state = self.state.lock().unwrap();
            state.steps_left.as_mut().is_some_and(|left| {
                *left = left.wrapping_sub(1);
                *left == u32::MAX
            })
        };
        if is_killed {
            self.crashed.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// One request, with a kill before the cloud has worked on it and one before its answer arrives.
    async fn serve<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, Failure> {
        self.step().await;
        let answer = {
            let mut state = self.state.lock().unwrap();
            if state.refusals > 0 {
                state.refusals -= 1;
                return Err(Failure::from_http(429, Some("2"), "too many requests"));
            }
            work(&mut state)
        };
        self.step().await;
        Ok(answer)
    }

    async fn begin_disk(&self, key: &str, _size: u64) -> Result<String, Failure> {
        self.serve(|state| {
            state.operations.entry(key.to_owned()).or_default();
            format!("operation-{key}")
        })
        .await
    }

    async fn disk_of(&self, operation: &str) -> Result<Option<String>, Failure> {
        self.serve(|state| {
            let key = operation.trim_start_matches("operation-");
            let running = state.operations.get_mut(key).expect("the operation has begun");
            running.polls += 1;
            let disk = format!("disk-{key}");
            if running.polls == 3 {
                state.disks.push(disk.clone());
            }
            (state.operations[key].polls >= 3).then_some(disk)
        })
        .await
    }

    async fn delete_disks(&self, disks: &[String]) -> Result<Vec<Result<()>>, Failure> {
        self.serve(|state| {
            state.deletes.push(disks.len());
            state.disks.retain(|disk| !disks.contains(disk));
            disks.iter().map(|_| Ok(())).collect()
        })
        .await
    }

    fn disks(&self) -> Vec<String> {
        self.state.lock().unwrap().disks.clone()
    }
}

fn create(name: &str, required_bytes: u64) -> CreateVolumeRequest {
    let capability = v1::VolumeCapability::block(v1::volume_capability::access_mode::Mode::SingleNodeWriter);
    let wire = v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: required_bytes as i64, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..Default::default()
    };
    wire.try_into().expect("a request")
}

fn delete(id: &str) -> DeleteVolumeRequest {
    let wire = v1::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    wire.try_into().expect("a request")
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_killed_at_any_request_makes_one_disk() {
    let mut kills = 0;
    for steps in 0.. {
        let directory = tempfile::tempdir().unwrap();
        let cloud = Arc::new(Cloud::default());
        cloud.state.lock().unwrap().steps_left = Some(steps);
        let driver = Driver::new(&cloud, directory.path()).unwrap();
        let is_killed = tokio::select! {
            volume = driver.create_volume(create("pvc", GIB)) => {
                volume.unwrap();
                false
            }
            () = cloud.crashed.notified() => true,
        };
        drop(driver);
        cloud.state.lock().unwrap().steps_left = None;

        // The next process, and the repeated call.
        let driver = Driver::new(&cloud, directory.path()).unwrap();
        let volume = driver.create_volume(create("pvc", GIB)).await.unwrap();
        assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("pvc", GIB));
        assert_eq!(cloud.disks(), ["disk-pvc"], "killed after {steps} steps");
        driver.delete_volume(delete("pvc")).await.unwrap();
        assert!(cloud.disks().is_empty() && driver.lookup(&volume.volume_id).await.unwrap().is_none());
        if !is_killed {
            break;
        }
        kills += 1;
    }
    // Before and after the request that begins the operation, and each of three polls.
    assert_eq!(kills, 8);
}

/// Before the disk exists, its record already knows what was asked for.
#[tokio::test(start_paused = true)]
async fn another_request_of_the_same_name_is_refused_while_the_disk_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let cloud = Arc::new(Cloud::default());
    cloud.state.lock().unwrap().steps_left = Some(0);
    let driver = Driver::new(&cloud, directory.path()).unwrap();
    tokio::select! {
        _ = driver.create_volume(create("pvc", GIB)) => panic!("it is killed at its first request"),
        () = cloud.crashed.notified() => {}
    }
    cloud.state.lock().unwrap().steps_left = None;
    let larger = driver.create_volume(create("pvc", 2 * GIB)).await;
    assert!(matches!(larger, Err(Error::Incompatible(_))), "{larger:?}");
    assert!(cloud.disks().is_empty());
    driver.create_volume(create("pvc", GIB)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_requests_are_repeated_and_deletes_are_collected() {
    let directory = tempfile::tempdir().unwrap();
    let cloud = Arc::new(Cloud::default());
    let driver = Arc::new(Driver::new(&cloud, directory.path()).unwrap());
    cloud.state.lock().unwrap().refusals = 3;
    let names: Vec<String> = (0..40).map(|number| format!("pvc-{number}")).collect();
    for name in &names {
        driver.create_volume(create(name, GIB)).await.unwrap();
    }
    assert_eq!(cloud.disks().len(), 40);

    cloud.state.lock().unwrap().refusals = 2;
    let mut deletes = tokio::task::JoinSet::new();
    for name in names {
        let driver = Arc::clone(&driver);
        deletes.spawn(async move { driver.delete_volume(delete(&name)).await });
    }
    for deleted in deletes.join_all().await {
        deleted.unwrap();
    }
    assert!(cloud.disks().is_empty());
    let requests = cloud.state.lock().unwrap().deletes.clone();
    assert_eq!(requests.iter().sum::<usize>(), 40);
    // All arrive while the first request waits for its second attempt.
    assert!(requests.len() <= 3, "{requests:?}");
}
