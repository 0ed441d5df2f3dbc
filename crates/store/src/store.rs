//! A whole store: regions, metadata and names in one directory.

use crate::data::{Data, DirDisk, Geometry, NoRings, Recovery, Start, queues_cost, rings_cost};
use crate::files::{self, Medium, bad};
use crate::meta::{Batch, CachedKv, FjallKv, Kv};
use crate::names::{Names, Root};
use crate::reshape::Reshapes;
use crate::superblock::{Superblock, boot_id};
use crate::watch::WatchedKv;
use forebay_model::{Bytes, ErrorKind, FileId, Incarnation, Result, ServerId, Stamp};
use forebay_shm::Epochs;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Where the metadata says which life of the store it belongs to.
pub(crate) const INCARNATION_KEY: &[u8] = b"v";
const META_CACHE: Bytes = Bytes::mib(64);
/// Bytes of payload for each journal record: smaller writes than this fill the journal before the region.
const BYTES_PER_SLOT: u64 = 2048;
const ALIGN: u64 = 64 << 10;

/// What to make, or what to open.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The directory.
    pub dir: PathBuf,
    /// The server it belongs to.
    pub server: ServerId,
    /// Bytes that files can fill; fixed when the store is made.
    pub capacity: Bytes,
    /// Bytes in a region; chosen by capacity if absent.
    pub region: Option<Bytes>,
    /// What holds the regions.
    pub medium: Medium,
    /// The root directory, which is made in the store of the first server.
    pub root: Option<Root>,
}

/// Bytes and names at rest, in one directory, for one process at a time.
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
    checker: Checker,
    /// Held for its lock.
    _lock: File,
}

impl Store {
    /// Opens the store in a directory, or makes one where there is none.
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
        if superblock.server != config.server {
            return Err(bad(format!(
                "the store {} belongs to server {}, not {}",
                dir.display(),
                superblock.server,
                config.server
            )));
        }
        let regions = files::regions_dir(&dir);
        if !files::has_regions(&dir) {
            return Err(bad(format!(
                "the regions of the store {} are gone (memory is lost with the machine): run \"forebay store \
                 replace {}\" to go on without the bytes they held",
                dir.display(),
                dir.display()
            )));
        }
        let watched = WatchedKv::new(CachedKv::new(FjallKv::open(&dir.join("meta"), META_CACHE)?));
        let watched = Arc::new(watched);
        let kv: Arc<dyn Kv> = watched.clone();
        if kv.get(INCARNATION_KEY)?.as_deref() != Some(&superblock.incarnation.0.to_be_bytes()) {
            return Err(bad(format!(
                "{} holds the metadata of another store: give it back its own, or run \"forebay store replace {}\" \
                 again if that was interrupted",
                dir.join("meta").display(),
                dir.display()
            )));
        }
        files::end_making(&dir)?;
        files::clear_unfinished(&regions)?;
        superblock.clean = false;
        superblock.write(&dir)?;
        let disk = Arc::new(DirDisk::new(regions.clone(), files::is_in_memory(&regions)));
        let (geometry, incarnation) = (superblock.geometry, superblock.incarnation);
        let (data, recovery) =
            Data::open(disk, Arc::clone(&kv), geometry, incarnation, start, Box::new(NoRings))?;
        if start == Start::MachineDied {
            data.sync_all()?;
        }
        // Only now: until every payload is checked, whoever opens the store has to check them again.
        superblock.boot = boot_id()?;
        superblock.write(&dir)?;
        let names = Names::open(Arc::clone(&kv), superblock.server)?;
        let reshapes = Reshapes::open(Arc::clone(&kv))?;
        let nameless = nameless(&data, &names)?;
        if start == Start::MachineDied {
            // Their creation never became durable, so nobody was told that they exist for good.
            nameless.iter().try_for_each(|&file| data.delete(file, Batch::default()))?;
        }
        let epochs = make_epochs(&data)?;
        if let Some(epochs) = &epochs {
            watched.tell(epochs.clone());
            data.tell(epochs.clone());
        }
        let data = Arc::new(data);
        let checker = Checker::start(&data, start);
        let medium = files::describe_medium(&dir);
        let mut notes = notes(config, geometry);
        if start != Start::MachineDied && !nameless.is_empty() {
            let text = "files have bytes but no name: the metadata may be damaged; their space stays in use";
            notes.push(format!("{} {text}", nameless.len()));
        }
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
            checker,
            _lock: lock,
        })
    }

    /// Gives up the bytes of a store whose regions are lost, and makes new ones. Names stay; reading what was lost
    /// gives an I/O error.
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

    /// Removes a store with everything in it. Whoever dies over it can do it again.
    pub fn remove(dir: &Path) -> Result<()> {
        // Before anything is made there, the lock included.
        if !files::is_half(dir) {
            Superblock::read(dir)?;
        }
        let _lock = files::lock_dir(dir)?;
        if !files::is_half(dir) {
            Superblock::read(dir)?;
        }
        files::remove_parts(dir)?;
        // Last: nobody else may begin here before everything is gone.
        let lock = dir.join("lock");
        std::fs::remove_file(&lock).map_err(|error| files::failed("remove", &lock, &error))?;
        // Whatever else is in there is not ours to remove.
        let _ = std::fs::remove_dir(dir);
        Ok(())
    }

    /// The bytes.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The names.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Changes of bytes that other stores make too.
    #[must_use]
    pub fn reshapes(&self) -> &Arc<Reshapes> {
        &self.reshapes
    }

    /// The metadata behind both.
    #[must_use]
    pub fn meta(&self) -> &Arc<dyn Kv> {
        &self.kv
    }

    /// Which life of the store this is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.superblock.incarnation
    }

    /// How the last run ended.
    #[must_use]
    pub fn start(&self) -> Start {
        self.start
    }

    /// What recovery found.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// What holds the regions: `tmpfs, huge pages`, `tmpfs` or `disk`.
    #[must_use]
    pub fn medium(&self) -> &str {
        &self.medium
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What an administrator should know about how the store was opened.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// By what clients see how long an answer counts; none where they cannot see it.
    #[must_use]
    pub fn epochs(&self) -> Option<&Epochs> {
        self.epochs.as_deref()
    }

    /// Does what the last change of a name has left for a moment in which nobody waits.
    pub fn tidy(&self) {
        self.kv.tidy();
    }

    /// To be called now and then: does what the next one would have to wait for, if nobody is there.
    pub fn rest(&self) -> Result<()> {
        self.kv.rest()
    }

    /// Makes everything durable and notes that the store was left in order.
    pub fn close(&self) -> Result<()> {
        self.checker.stop();
        if let Some(epochs) = &self.epochs {
            epochs.retire();
        }
        self.data.settle_all()?;
        self.data.sync_all()?;
        self.data.store_clock()?;
        self.kv.sync()?;
        Superblock { clean: true, ..self.superblock }.write(&self.dir)
    }
}

/// Checks payloads in the background. After the machine died, and in a new store, there is nothing left to check.
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
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It only reads; whatever made it panic is met again by whoever reads the same bytes.
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
    let Geometry { regions, size, .. } = superblock.geometry;
    let one = u64::from(size) + superblock.geometry.log_len();
    // One more than there are: a region is made anew beside the old one.
    let bytes = (u64::from(regions) + 1) * one + rings_cost() + queues_cost();
    files::make_regions_dir(dir, medium, superblock.incarnation, bytes)?;
    let place = files::regions_dir(dir);
    let disk = DirDisk::new(place.clone(), files::is_in_memory(&place));
    Data::format(&disk, superblock.geometry, superblock.incarnation)?;
    let mut batch = Batch::default();
    batch.put(INCARNATION_KEY, superblock.incarnation.0.to_be_bytes());
    kv.commit(batch)?;
    kv.sync()
}

/// Epochs for this life of the store. Where there is no room for them, clients ask every time.
fn make_epochs(data: &Data) -> Result<Option<Arc<Epochs>>> {
    let Ok(file) = data.make_epochs() else { return Ok(None) };
    let life = random_incarnation()?.0 as u64 | 1;
    Ok(Epochs::create(&file, life).ok().map(Arc::new))
}

/// How many regions of which size make up a capacity, with one more for the cleaner.
fn geometry(capacity: Bytes, region: Option<Bytes>) -> Result<Geometry> {
    let wanted =
        region.map_or_else(|| (capacity.0 / 256).clamp(4 << 20, 256 << 20).min(capacity.0 / 4), |r| r.0);
    let size = wanted.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
    let regions = capacity.0.div_ceil(size.max(1)).saturating_add(1);
    let clip = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let geometry = Geometry { regions: clip(regions), size: clip(size), slots: clip(size / BYTES_PER_SLOT) };
    if capacity.0 < 4 * ALIGN || !geometry.is_possible() {
        return Err(forebay_model::Error::new(
            ErrorKind::Invalid,
            format!(
                "a capacity of {capacity} in regions of {} cannot be: at least {} in all, regions of at most 1 GiB, \
                 at least two of them",
                Bytes(size),
                Bytes(4 * ALIGN)
            ),
        ));
    }
    Ok(geometry)
}

fn notes(config: &StoreConfig, geometry: Geometry) -> Vec<String> {
    let capacity = Bytes(u64::from(geometry.regions - 1) * u64::from(geometry.size));
    let asked = config.capacity.0.checked_next_multiple_of(u64::from(geometry.size));
    let differs = Some(capacity.0) != asked;
    let note = format!(
        "the store was made with a capacity of {capacity} and keeps it; {} is asked for",
        config.capacity
    );
    differs.then_some(note).into_iter().collect()
}

/// Files that have bytes, but no inode. Files of other servers have theirs elsewhere.
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
    getrandom::fill(&mut bytes)
        .map_err(|error| forebay_model::Error::new(ErrorKind::Io, format!("no randomness: {error}")))?;
    Ok(Incarnation(u128::from_be_bytes(bytes)))
}
