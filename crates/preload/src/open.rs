//! Open files of this process.

use crate::backing::{Header, Kind, Mapped};
use crate::engine::{self, Engine};
use crate::errno::{Errno, Outcome, fail};
use crate::exit;
use crate::{locks, process_state};
use forebay_client::File;
use forebay_model::{Attr, ErrorKind, FileId};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An open file: the memory file shared by all its processes, and this process's handle at the service.
pub(crate) struct Open {
    mapped: Mapped,
    /// The handle that the service gave this generation of the process.
    hold: AtomicPtr<Hold>,
}

struct Hold {
    generation: u64,
    file: Arc<File>,
}

impl Hold {
    fn new(file: Arc<File>) -> *mut Hold {
        Box::into_raw(Box::new(Hold { generation: process_state::generation(), file }))
    }
}

impl std::ops::Deref for Open {
    type Target = Header;

    fn deref(&self) -> &Header {
        &self.mapped
    }
}

impl Open {
    /// A file that this process has opened.
    pub(crate) fn new(mapped: Mapped, file: Option<File>) -> Open {
        let open = Open::inherited(mapped);
        if let Some(file) = file {
            open.hold.store(Hold::new(Arc::new(file)), Ordering::Release);
        }
        open
    }

    /// A file that another process, or an earlier program in this process, has opened.
    pub(crate) fn inherited(mapped: Mapped) -> Open {
        Open { mapped, hold: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The file, opened at the service by this process.
    pub(crate) fn data(&self) -> Outcome<Arc<File>> {
        match self.kind() {
            Kind::File => {}
            Kind::Directory => return fail(libc::EISDIR),
            Kind::Path => return fail(libc::EBADF),
        }
        let known = self.hold.load(Ordering::Acquire);
        // SAFETY: a hold is freed only with the open file; replaced holds of earlier generations are never freed.
        let hold = unsafe { known.as_ref() };
        if let Some(hold) = hold.filter(|hold| hold.generation == process_state::generation()) {
            return Ok(hold.file.clone());
        }
        Ok(self.take_over(known)?)
    }

    /// The file, if this process has it open at the service.
    pub(crate) fn held(&self) -> Option<Arc<File>> {
        // SAFETY: as above.
        let hold = unsafe { self.hold.load(Ordering::Acquire).as_ref() }?;
        (hold.generation == process_state::generation()).then(|| hold.file.clone())
    }

    /// Opens the file on other connections; returns the previous handle, if there was one.
    pub(crate) fn renew(&self, engine: &'static Engine) -> Result<Option<Arc<File>>, Errno> {
        let before = self.held();
        let token = self.token_for(engine).ok_or(Errno(libc::EBADF))?;
        let file = engine.wait_for(engine.reopen(token))?;
        // Another thread may be about to use the previous hold, so it is never freed.
        self.hold.store(Hold::new(Arc::new(file)), Ordering::Release);
        Ok(before)
    }

    fn take_over(&self, known: *mut Hold) -> Result<Arc<File>, Errno> {
        let file = engine::run(|engine: &'static Engine| {
            let token = self.token_for(engine);
            async move { engine.reopen(token.ok_or(ErrorKind::BadHandle)?).await }
        })?;
        let file = Arc::new(file);
        let hold = Hold::new(file.clone());
        if self.hold.compare_exchange(known, hold, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread was faster. Both handles have the same token, which is closed once: with the open file.
            std::mem::forget(file.clone());
        }
        Ok(file)
    }

    /// The file, if it is open for reading.
    pub(crate) fn for_reading(&self) -> Outcome<Arc<File>> {
        match self.access as i32 & libc::O_ACCMODE {
            libc::O_WRONLY => fail(libc::EBADF),
            _ => self.data(),
        }
    }

    /// The file, if it is open for writing.
    pub(crate) fn for_writing(&self) -> Outcome<Arc<File>> {
        match self.access as i32 & libc::O_ACCMODE {
            libc::O_RDONLY => fail(libc::EBADF),
            _ => self.data(),
        }
    }

    /// The attributes of the open file.
    pub(crate) fn attr(&self) -> Outcome<Attr> {
        if self.kind() == Kind::File {
            // The service returns an open file's attributes to its holder even if the file has no name any more.
            let file = self.data()?;
            return Ok(engine::run(|_| file.stat())?);
        }
        let file = self.id();
        Ok(engine::run(move |engine| engine.by_id().get_attr(file))?)
    }

    /// The shared memory file.
    pub(crate) fn backing(&self) -> &Mapped {
        &self.mapped
    }

    /// Distinguishes open files of this process.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref::<Header>(&self.mapped) as usize
    }

    pub(crate) fn id(&self) -> FileId {
        self.mapped.file()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        locks::gone(self.address());
        let hold = std::mem::replace(self.hold.get_mut(), std::ptr::null_mut());
        if hold.is_null() {
            return;
        }
        // SAFETY: no other thread can reach it any more.
        let hold = unsafe { Box::from_raw(hold) };
        match hold.generation == process_state::generation() {
            true => exit::close(hold.file),
            // The connections are the parent's: this process must not send on them.
            false => std::mem::forget(hold),
        }
    }
}
