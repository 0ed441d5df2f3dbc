//! One modelled target in real time.

use forebay_model::{Error, ErrorKind, FileId, Result, Span};
use forebay_policy::Tick;
use forebay_policy::device::{Device, ModelledState, ModelledTarget, Work};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Poll interval for a shared target, which another process may have changed.
const LOOK: Duration = Duration::from_millis(20);

/// One modelled target.
pub(super) struct Gauge {
    device: Device,
    target: Mutex<ModelledTarget>,
    /// File with the shared state of the target.
    file: Option<File>,
}

impl Gauge {
    /// A target of this back end alone.
    pub(super) fn own(device: Device) -> Gauge {
        Gauge { target: Mutex::new(ModelledTarget::new(device.clone())), device, file: None }
    }

    /// The target with this number, shared by all processes that name the directory.
    pub(super) fn shared(device: Device, dir: &Path, number: usize) -> Result<Gauge> {
        let path = dir.join(format!("target-{number}"));
        let open = || {
            std::fs::create_dir_all(dir)?;
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)
        };
        match open() {
            Ok(file) => Ok(Gauge { file: Some(file), ..Gauge::own(device) }),
            Err(error) => {
                let text = format!("cannot share a modelled target in {}: {error}", path.display());
                Err(Error::new(ErrorKind::Io, text))
            }
        }
    }

    pub(super) fn begin(&self, file: FileId, span: Span) -> Result<Work> {
        self.with(|target, now| target.begin(now, file, span))
    }

    pub(super) fn flush(&self) -> Result<Work> {
        self.with(ModelledTarget::flush)
    }

    /// Waits until a write has ended.
    pub(super) fn wait(&self, work: Work) -> Result<()> {
        while let Some(nap) = self.with(|target, now| {
            target.ended(now);
            let left = target.next_end().unwrap_or(now).since(now);
            target.is_under_way(work).then(|| Duration::from_nanos(left.0))
        })? {
            std::thread::sleep(nap.min(LOOK));
        }
        Ok(())
    }

    fn with<T>(&self, act: impl FnOnce(&mut ModelledTarget, Tick) -> T) -> Result<T> {
        let mut target = self.target.lock();
        let Some(file) = &self.file else { return Ok(act(&mut target, now())) };
        let unusable =
            |error| Error::new(ErrorKind::Io, format!("cannot use a shared modelled target: {error}"));
        file.lock().map_err(unusable)?;
        let done = load(file).and_then(|state| {
            let now = now();
            *target = match state {
                Some(state) => ModelledTarget::resume(self.device.clone(), state, now),
                None => ModelledTarget::new(self.device.clone()),
            };
            let done = act(&mut target, now);
            save(file, target.state()).map(|()| done)
        });
        file.unlock().map_err(unusable)?;
        done.map_err(unusable)
    }
}

/// Loads the state, if there is a valid one; otherwise the target starts idle.
fn load(file: &File) -> std::io::Result<Option<ModelledState>> {
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(1 << 20);
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(postcard::from_bytes(&bytes).ok())
}

fn save(file: &File, state: &ModelledState) -> std::io::Result<()> {
    let bytes = postcard::to_stdvec(state).map_err(std::io::Error::other)?;
    file.write_all_at(&bytes, 0)?;
    file.set_len(bytes.len() as u64)
}

/// The monotonic clock, which is the same in all processes of the machine.
fn now() -> Tick {
    let now = clock_gettime(ClockId::Monotonic);
    Tick(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    #[test]
    fn processes_that_share_a_target_see_all_its_writers() {
        let dir = tempfile::tempdir().expect("a directory");
        let slow = device("ost").expect("a device").slower(1e6);
        let share = |number| Gauge::shared(slow.clone(), dir.path(), number).expect("a shared target");
        let (one, same, other) = (share(0), share(0), share(1));
        let writers = |gauge: &Gauge| gauge.with(|target, _| target.writers()).expect("a state");
        let works = [(&one, 1), (&same, 2)].map(|(gauge, file)| {
            let work = gauge.begin(FileId(file), Span::new(0, 1 << 20)).expect("begun");
            (gauge, work)
        });
        assert_eq!([&one, &same, &other].map(writers), [2, 2, 0]);
        // Time passes for the machine, whichever process looks.
        for (gauge, work) in works {
            let ended = gauge.with(|target, now| {
                target.advance(now.after(Tick::ms(100_000_000)));
                target.is_under_way(work)
            });
            assert!(!ended.expect("a state"));
        }
        // A state in the future is from another boot.
        assert_eq!([&one, &same].map(writers), [0, 0]);
    }

    #[test]
    fn invalid_shared_state_starts_an_idle_target() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("target-0"), b"\xff\xff\xff").expect("written");
        let gauge = Gauge::shared(device("hdd").expect("a device"), dir.path(), 0).expect("a shared target");
        let work = gauge.begin(FileId(1), Span::new(0, 1)).expect("begun");
        gauge.wait(work).expect("a queue has room");
    }
}
