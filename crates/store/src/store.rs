//! A whole store: regions, metadata and names in one directory.

use crate::data::{Data, DirDisk, Geometry, Recovery, Start, queues_cost, rings_cost};
use crate::files::{self, Medium, bad};
use crate::meta::{Batch, CachedKv, FjallKv, KeySpace, Kv};
use crate::names::{Names, Root};
use crate::reshape::Reshapes;
use crate::room;
use crate::superblock::{Superblock, boot_id};
use crate::watch::WatchedKv;
use forebay_model::{Bytes, ErrorKind, FileId, Incarnation, Result, ServerId, Stamp};
use forebay_shm::{Epochs, TokenKeys};
use parking_lot::Mutex;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The key under which the metadata records the incarnation of its store.
pub(crate) const INCARNATION_KEY: &[u8] = KeySpace::Incarnation.prefix();
const META_CACHE: Bytes = Bytes::mib(64);
/// Bytes of payload per journal record. Writes smaller than this fill the journal before the region.
const BYTES_PER_SLOT: u64 = 2048;
const ALIGN: u64 = 64 << 10;
/// A clock that is ahead by more than this is reported; machines correct smaller differences every day.
const AHEAD: Duration = Duration::from_secs(60);

/// How to create or open a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The directory.
    pub dir: PathBuf,
    /// The server that owns the store.
    pub server: ServerId,
    /// Bytes that files can fill; fixed when the store is created.
    pub capacity: Bytes,
    /// Bytes in a region; derived from the capacity if absent.
    pub region: Option<Bytes>,
    /// The kind of storage that holds the regions.
    pub medium: Medium,
    /// The root directory, created in the store of the first server.
    pub root: Option<Root>,
}

/// Bytes and names of files in one directory, for one process at a time.
pub struct Store {
    dir: PathBuf,
    data: Arc<Data>,
    names: Names,
    reshapes: Arc<Reshapes>,
    kv: Arc<dyn Kv>,
    superblock: Superblock,
    start: Start,
    recovery: Recovery,
    medium: String,
    notes: Vec<String>,
    epochs: Option<Arc<Epochs>>,
    keys: Mutex<Option<TokenKeys>>,
    checker: Checker,
    /// Keeps the directory locked.
    _lock: File,
}

impl Store {
    /// Opens the store in a directory, or creates one if the directory holds none.
    pub fn open_or_create(config: &StoreConfig) -> Result<Store> {
        files::make_dir(&config.dir)?;
        let lock = files::lock_dir(&config.dir)?;
        if !Superblock::exists(&config.dir) {
            create(config)?;
            return Store::open(config, lock, Start::Fresh);
        }
        files::check_private(&config.dir)?;
        let superblock = Superblock::read(&config.dir)?;
        let start = match (superblock.clean, superblock.boot == boot_id()?) {
            (true, _) => Start::Clean,
            (false, true) => Start::ProcessDied,
            (false, false) => Start::MachineDied,
        };
        Store::open(config, lock, start)
    }

    fn open(config: &StoreConfig, lock: File, start: Start) -> Result<Store> {
        let dir = config.dir.clone();
        let mut superblock = Superblock::read(&dir)?;
        files::demand_own_regions(&dir)?;
        demand_whole(config, &superblock)?;
        let watched = Arc::new(open_metadata(&dir, superblock.incarnation)?);
        let kv: Arc<dyn Kv> = watched.clone();
        let regions = files::regions_dir(&dir);
        files::end_making(&dir)?;
        files::clear_unfinished(&regions)?;
        superblock.clean = false;
        superblock.write(&dir)?;
        let disk = Arc::new(DirDisk::new(regions.clone(), files::is_in_memory(&regions)));
        let (geometry, incarnation) = (superblock.geometry, superblock.incarnation);
        let (data, recovery) = Data::open(disk, Arc::clone(&kv), geometry, incarnation, start)?;
        if start == Start::MachineDied {
            data.sync_all()?;
        }
        // The boot id is written only now: until all payloads are checked, the next process must check them again.
        superblock.boot = boot_id()?;
        superblock.write(&dir)?;
        let names = Names::open(Arc::clone(&kv), superblock.server)?.with_times(data.times().clone());
        let reshapes = Reshapes::open(Arc::clone(&kv))?;
        let nameless = nameless(&data, &names)?;
        if start == Start::MachineDied {
            // Their creation never became durable, so it was never reported as durable to a client.
            nameless.iter().try_for_each(|&file| data.delete(file, Batch::default()))?;
        }
        let epochs = make_epochs(&data)?;
        if let Some(epochs) = &epochs {
            watched.notify(epochs.clone());
            data.notify(epochs.clone());
        }
        // Without space for the keys, the next process finds none.
        let keys = data.open_keys(start).ok();
        let data = Arc::new(data);
        let checker = Checker::start(&data, start);
        let medium = files::describe_medium(&dir);
        let mut notes = notes(config, geometry);
        notes.extend(files::note_on_memory(&dir));
        notes.extend(files::note_on_owner(&dir));
        notes.extend(note_on_clock(data.ahead_of_clock()));
        notes.extend(note_on_nameless(nameless.len()).filter(|_| start != Start::MachineDied));
        Ok(Store {
            dir,
            data,
            names,
            reshapes,
            kv,
            superblock,
            start,
            recovery,
            medium,
            notes,
            epochs,
            keys: Mutex::new(keys),
            checker,
            _lock: lock,
        })
    }

    /// Fails if the stores that do not exist yet do not fit. All configured stores share one machine and one parent
    /// directory.
    pub fn demand_room(configs: &[StoreConfig]) -> Result<()> {
        let (mut need, mut place) = (0_u64, None);
        for config in configs.iter().filter(|config| !Superblock::exists(&config.dir)) {
            need = need.saturating_add(cost(geometry(config.capacity, config.region)?));
            place = Some(config);
        }
        let Some(StoreConfig { dir, medium, .. }) = place else { return Ok(()) };
        let (in_memory, place) = files::place_of_regions(dir, *medium);
        room::demand(need, in_memory, place.as_deref())
    }

    /// Discards the bytes of a store whose regions are lost, and creates new regions. Names stay; reading lost bytes
    /// returns an I/O error.
    pub fn replace(dir: &Path, medium: Medium) -> Result<Incarnation> {
        Superblock::read(dir)?;
        let _lock = files::lock_dir(dir)?;
        let superblock = Superblock::read(dir)?;
        files::remove_regions_dir(dir)?;
        let fresh = Superblock { incarnation: random_incarnation()?, ..superblock };
        let kv = FjallKv::open(&dir.join("meta"), META_CACHE)?;
        make_regions(dir, medium, &fresh, &kv)?;
        fresh.write(dir)?;
        Ok(fresh.incarnation)
    }

    /// Whether a directory holds a store, or a part of one whose creation or removal was interrupted.
    #[must_use]
    pub fn exists(dir: &Path) -> bool {
        Superblock::exists(dir) || files::is_half(dir)
    }

    /// Removes a store with everything in it. An interrupted removal can be repeated.
    pub fn remove(dir: &Path) -> Result<()> {
        // Checked before the lock file is created in the directory.
        if !files::is_half(dir) {
            Superblock::read(dir)?;
        }
        let _lock = files::lock_dir(dir)?;
        if !files::is_half(dir) {
            Superblock::read(dir)?;
        }
        files::remove_parts(dir)?;
        // The lock file goes last: no other process may create a store in this directory before everything is removed.
        let lock = dir.join("lock");
        std::fs::remove_file(&lock).map_err(|error| files::failed("remove", &lock, &error))?;
        // Other files in the directory do not belong to the store, so a failure is fine.
        let _ = std::fs::remove_dir(dir);
        Ok(())
    }

    /// The bytes of files.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The names of files.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Truncations and holes that several stores apply together.
    #[must_use]
    pub fn reshapes(&self) -> &Arc<Reshapes> {
        &self.reshapes
    }

    /// The metadata store that data and names share.
    #[must_use]
    pub fn meta(&self) -> &Arc<dyn Kv> {
        &self.kv
    }

    /// The incarnation of the store.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.superblock.incarnation
    }

    /// How the last run of the server process ended.
    #[must_use]
    pub fn start(&self) -> Start {
        self.start
    }

    /// The result of recovery.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The storage of the regions: `tmpfs, huge pages`, `tmpfs` or `disk`.
    #[must_use]
    pub fn medium(&self) -> &str {
        &self.medium
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Notes for the administrator about how the store was opened.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The epochs by which clients check their cached answers; `None` if they could not be created.
    #[must_use]
    pub fn epochs(&self) -> Option<&Epochs> {
        self.epochs.as_deref()
    }

    /// Keys that outlive this process, including those of an earlier process. Can be taken once; `None` if the store
    /// had no space for them.
    pub fn take_keys(&self) -> Option<TokenKeys> {
        self.keys.lock().take()
    }

    /// Does the work that the last change of a name deferred.
    pub fn tidy(&self) {
        self.kv.tidy();
    }

    /// Called periodically: does deferred work while the store is idle.
    pub fn rest(&self) -> Result<()> {
        self.kv.rest()
    }

    /// Makes everything durable and marks the store as closed cleanly.
    pub fn close(&self) -> Result<()> {
        self.checker.stop();
        if let Some(epochs) = &self.epochs {
            epochs.retire();
        }
        // Files that a process still maps continue under the next server process, like those that cannot be written back
        // now. The rest is closed all the same.
        let mut ended = Ok(());
        for file in self.data.mapped() {
            ended = ended.and(self.data.end_map(file).map(drop));
        }
        ended = ended.and(self.data.write_back_all());
        self.data.persist_all_sizes()?;
        self.data.flush_all()?;
        self.data.store_clock()?;
        self.kv.sync()?;
        Superblock { clean: true, ..self.superblock }.write(&self.dir)?;
        ended
    }
}

/// Checks payloads in the background. A new store, and one that recovery checked after the machine died, needs no
/// check.
struct Checker {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Checker {
    fn start(data: &Arc<Data>, start: Start) -> Checker {
        let stop = Arc::new(AtomicBool::new(false));
        let (data, stopped) = (Arc::clone(data), Arc::clone(&stop));
        let check = move || {
            data.check_payloads(&|| stopped.load(Ordering::Relaxed));
        };
        let thread = matches!(start, Start::Clean | Start::ProcessDied).then(|| std::thread::spawn(check));
        Checker { stop, thread: Mutex::new(thread) }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The thread only reads. Reading the same bytes again hits whatever made it panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn create(config: &StoreConfig) -> Result<()> {
    let dir = &config.dir;
    let geometry = geometry(config.capacity, config.region)?;
    Store::demand_room(std::slice::from_ref(config))?;
    files::begin_making(dir)?;
    let made = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let superblock = Superblock {
        incarnation: random_incarnation()?,
        server: config.server,
        geometry,
        boot: boot_id()?,
        clean: true,
        made: made.map_or(0, |since| since.as_secs()),
    };
    let kv = FjallKv::create(&dir.join("meta"), META_CACHE)?;
    let now = Stamp(superblock.made * 1_000_000_000);
    Names::format(&kv, config.server, config.root, now)?;
    make_regions(dir, config.medium, &superblock, &kv)?;
    superblock.write(dir)?;
    files::end_making(dir)
}

fn make_regions(dir: &Path, medium: Medium, superblock: &Superblock, kv: &FjallKv) -> Result<()> {
    files::make_regions_dir(dir, medium, superblock.incarnation, cost(superblock.geometry))?;
    let place = files::regions_dir(dir);
    let disk = DirDisk::new(place.clone(), files::is_in_memory(&place));
    Data::format(&disk, superblock.geometry, superblock.incarnation)?;
    let mut batch = Batch::default();
    batch.put(INCARNATION_KEY, superblock.incarnation.0.to_be_bytes());
    kv.commit(batch)?;
    kv.sync()
}

/// Upper bound of the bytes that the regions and their files take.
fn cost(geometry: Geometry) -> u64 {
    let one = u64::from(geometry.size) + geometry.log_len();
    // One more than the number of regions: a region is recreated beside its old files.
    (u64::from(geometry.regions) + 1) * one + rings_cost() + queues_cost()
}

/// Creates the epochs for this run of the server process. Without space for them, clients revalidate every time.
fn make_epochs(data: &Data) -> Result<Option<Arc<Epochs>>> {
    let Ok(file) = data.make_epochs() else { return Ok(None) };
    let run = random_incarnation()?.0 as u64 | 1;
    Ok(Epochs::create(&file, run).ok().map(Arc::new))
}

/// The number and size of regions for a capacity, with one more region for the cleaner.
fn geometry(capacity: Bytes, region: Option<Bytes>) -> Result<Geometry> {
    // A region serves one user. A small store has many small regions, so that a few users with one byte each do not
    // fill it.
    let usual = (capacity.0 / 256).clamp(4 << 20, 256 << 20).min((capacity.0 / 64).max(1 << 20));
    let wanted = region.map_or_else(|| usual.min(capacity.0 / 4), |region| region.0);
    let size = wanted.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
    let regions = capacity.0.div_ceil(size.max(1)).saturating_add(1);
    let clip = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let geometry = Geometry { regions: clip(regions), size: clip(size), slots: clip(size / BYTES_PER_SLOT) };
    if capacity.0 < 4 * ALIGN || !geometry.is_possible() {
        return Err(forebay_model::Error::new(
            ErrorKind::Invalid,
            format!(
                "cannot divide a capacity of {capacity} into regions of {}: a store needs at least {} and at least two \
                 regions of at most 1 GiB each",
                Bytes(size),
                Bytes(4 * ALIGN)
            ),
        ));
    }
    Ok(geometry)
}

fn notes(config: &StoreConfig, geometry: Geometry) -> Vec<String> {
    let capacity = Bytes(u64::from(geometry.regions - 1) * u64::from(geometry.size));
    let requested = config.capacity.0.checked_next_multiple_of(u64::from(geometry.size));
    let differs = Some(capacity.0) != requested;
    let note = format!(
        "the store was created with a capacity of {capacity} and keeps it; the configured {} is ignored",
        config.capacity
    );
    differs.then_some(note).into_iter().collect()
}

/// Fails if the store is another server's, or has lost its regions.
fn demand_whole(config: &StoreConfig, superblock: &Superblock) -> Result<()> {
    let (dir, server) = (config.dir.display(), superblock.server);
    if server != config.server {
        return Err(bad(format!("the store {dir} belongs to server {server}, not {}", config.server)));
    }
    if !files::has_regions(&config.dir) {
        return Err(bad(format!(
            "the regions of the store {dir} are gone (memory is lost with the machine): run \"forebay store \
             replace {dir}\" to go on without the bytes they held"
        )));
    }
    Ok(())
}

/// Opens the metadata, which must be that of the store with this incarnation.
fn open_metadata(dir: &Path, incarnation: Incarnation) -> Result<WatchedKv<CachedKv<FjallKv>>> {
    let kv = WatchedKv::new(CachedKv::new(FjallKv::open(&dir.join("meta"), META_CACHE)?));
    if kv.get(INCARNATION_KEY)?.as_deref() != Some(&incarnation.0.to_be_bytes()) {
        return Err(bad(format!(
            "{} holds the metadata of another store: restore the metadata of this store, or run \"forebay \
             store replace {}\" again if it was interrupted",
            dir.join("meta").display(),
            dir.display()
        )));
    }
    Ok(kv)
}

fn note_on_nameless(files: usize) -> Option<String> {
    let text = "files have bytes but no name: the metadata may be damaged; their space stays in use";
    (files > 0).then(|| format!("{files} {text}"))
}

/// The note for the administrator if an earlier server process ran with a clock in the future.
fn note_on_clock(ahead: Duration) -> Option<String> {
    (ahead > AHEAD).then(|| {
        format!(
            "the store was used with a clock that was {} minutes ahead of this machine's present one: files that changed \
             meanwhile keep times in the future; files that change from now on get the present time",
            ahead.as_secs() / 60
        )
    })
}

/// Files of this server that have bytes but no inode. The inodes of files of other servers are in other stores.
fn nameless(data: &Data, names: &Names) -> Result<Vec<FileId>> {
    let mut nameless = Vec::new();
    for file in data.files().into_iter().filter(|file| file.maker() == names.server()) {
        match names.inode(file) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => {
                nameless.push(file);
            }
            found => drop(found?),
        }
    }
    Ok(nameless)
}

fn random_incarnation() -> Result<Incarnation> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        forebay_model::Error::new(ErrorKind::Io, format!("cannot get random bytes: {error}"))
    })?;
    Ok(Incarnation(u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_stores_have_many_small_regions() {
        for (mib, regions, size) in
            [(16, 16, 1), (64, 64, 1), (128, 64, 2), (256, 64, 4), (1024, 256, 4), (4096, 256, 16)]
        {
            let made = geometry(Bytes::mib(mib), None).unwrap();
            assert_eq!((made.regions - 1, u64::from(made.size)), (regions, size << 20), "{mib} MiB");
        }
        assert_eq!(geometry(Bytes::mib(64), Some(Bytes::mib(8))).unwrap().size, 8 << 20, "as configured");
    }
}
