//! Open files as this process knows them.

use crate::backing::{Header, Kind, Mapped};
use crate::engine::{self, Engine};
use crate::errno::{Errno, Outcome, fail};
use crate::exit;
use crate::{life, locks};
use forebay_client::{File, Token};
use forebay_model::{Attr, FileId};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An open file: what the kernel keeps for all who share it, and this process's own hold on it.
pub(crate) struct Open {
    mapped: Mapped,
    /// What the service gave this life of the process.
    hold: AtomicPtr<Hold>,
}

struct Hold {
    generation: u64,
    file: Arc<File>,
}

impl std::ops::Deref for Open {
    type Target = Header;

    fn deref(&self) -> &Header {
        &self.mapped
    }
}

impl Open {
    /// One that this process has opened.
    pub(crate) fn new(mapped: Mapped, file: Option<File>) -> Open {
        let open = Open::inherited(mapped);
        if let Some(file) = file {
            let hold = Hold { generation: life::generation(), file: Arc::new(file) };
            open.hold.store(Box::into_raw(Box::new(hold)), Ordering::Release);
        }
        open
    }

    /// One that another process, or an earlier program in this one, has opened.
    pub(crate) fn inherited(mapped: Mapped) -> Open {
        Open { mapped, hold: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The file, held open at the service by this process.
    pub(crate) fn data(&self) -> Outcome<Arc<File>> {
        match self.kind() {
            Kind::File => {}
            Kind::Directory => return fail(libc::EISDIR),
            Kind::Path => return fail(libc::EBADF),
        }
        let known = self.hold.load(Ordering::Acquire);
        // SAFETY: holds are freed only with the open file, and replaced ones of earlier lives never.
        if let Some(hold) = unsafe { known.as_ref() }.filter(|hold| hold.generation == life::generation()) {
            return Ok(hold.file.clone());
        }
        let token = self.token().ok_or(Errno(libc::EBADF))?;
        Ok(self.take_over(known, token)?)
    }

    /// The token, if this process holds the file open at the service.
    pub(crate) fn held_token(&self) -> Option<Token> {
        // SAFETY: as above.
        let hold = unsafe { self.hold.load(Ordering::Acquire).as_ref() }?;
        (hold.generation == life::generation()).then(|| self.token())?
    }

    fn take_over(&self, known: *mut Hold, token: Token) -> Result<Arc<File>, Errno> {
        let file = engine::run(move |engine: &'static Engine| engine.by_id().reopen(token))?;
        let file = Arc::new(file);
        let hold = Box::new(Hold { generation: life::generation(), file: file.clone() });
        let hold = Box::into_raw(hold);
        if self.hold.compare_exchange(known, hold, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Somebody else was faster. Both hold one token, which is closed once: with the open file.
            std::mem::forget(file.clone());
        }
        Ok(file)
    }

    /// For reading.
    pub(crate) fn for_reading(&self) -> Outcome<Arc<File>> {
        match self.access as i32 & libc::O_ACCMODE {
            libc::O_WRONLY => fail(libc::EBADF),
            _ => self.data(),
        }
    }

    /// For writing.
    pub(crate) fn for_writing(&self) -> Outcome<Arc<File>> {
        match self.access as i32 & libc::O_ACCMODE {
            libc::O_RDONLY => fail(libc::EBADF),
            _ => self.data(),
        }
    }

    /// The attributes of what is open.
    pub(crate) fn attr(&self) -> Outcome<Attr> {
        if self.kind() == Kind::File {
            // The service shows an open file's attributes to whoever holds it, name or no name.
            self.data()?;
        }
        let file = self.id();
        Ok(engine::run(move |engine| engine.by_id().get_attr(file))?)
    }

    /// The kernel's part of it.
    pub(crate) fn backing(&self) -> &Mapped {
        &self.mapped
    }

    /// Tells two open files of this process apart.
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
        // SAFETY: nobody else can reach it any more.
        let hold = unsafe { Box::from_raw(hold) };
        match hold.generation == life::generation() {
            true => exit::close(hold.file),
            // The parent's connections are not ours to speak on.
            false => std::mem::forget(hold),
        }
    }
}
