//! What servers ask each other. Whoever asks has proved the key and said in a [`Meeting`] which server it is.

use crate::lost::{Remain, Remains};
use crate::message::Token;
use forebay_model::{FileId, Incarnation, JobId, Members, Name, Reshape, ServerId, Stamp, Uid};
use serde::{Deserialize, Serialize};

/// Most bytes in one [`PeerRequest::Put`].
pub const MAX_PUT: usize = 256 << 10;

/// What a server asks another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerRequest {
    /// The first words on a line.
    Meet(Meeting),
    /// I am here; what I have of your directories counts for a lease from the moment I sent this.
    Beat,
    /// Something about names, in the store's own words.
    Names {
        /// What is asked.
        ask: Vec<u8>,
    },
    /// Something about names that somebody wants done, in the store's own words.
    Carry {
        /// What.
        ask: Vec<u8>,
    },
    /// What do your entries add to the attributes of a directory?
    Share {
        /// Which.
        dir: FileId,
    },
    /// Is this token good, and what has its holder to know?
    Vouch {
        /// The token.
        token: Token,
    },
    /// What do you hold of a file's bytes?
    Facts {
        /// Which file.
        file: FileId,
        /// Whether nobody has it open any more: whoever still thinks so has to be vouched for again.
        closed: bool,
    },
    /// Note a change of what you hold of a file; make it, or forget it, when you hear what became of it.
    Reshape {
        /// Which file.
        file: FileId,
        /// Which of its changes.
        serial: Stamp,
        /// What changes.
        change: Reshape,
        /// Bytes below this offset that you do not find were lost with an earlier life of your store.
        lost_below: u64,
    },
    /// Nobody can ever reach this file again.
    Forget {
        /// Which.
        file: FileId,
    },
    /// Somebody other than the superuser changes the bytes of this file: take its set-id bits away.
    DropSetId {
        /// Which.
        file: FileId,
    },
    /// This file was given a set-id bit: whoever writes has to say so.
    HasSetId {
        /// Which.
        file: FileId,
    },
    /// What became of a change that you have noted.
    Reshaped {
        /// Of which file.
        file: FileId,
        /// Which of its changes.
        serial: Stamp,
        /// Whether it is made.
        done: bool,
    },
    /// What became of a change that you had me note?
    Fate {
        /// Of which file.
        file: FileId,
        /// Which of its changes.
        serial: Stamp,
    },
    /// Write a piece of what somebody appends to a file of mine.
    Put {
        /// To which file.
        file: FileId,
        /// Who writes.
        uid: Uid,
        /// For which job.
        job: JobId,
        /// Where.
        offset: u64,
        /// Bytes below this offset that you do not find were lost with an earlier life of your store.
        lost_below: u64,
        /// What; at most [`MAX_PUT`] bytes.
        bytes: Vec<u8>,
    },
    /// Where is a file of yours in the back end?
    Behind {
        /// Which.
        file: FileId,
    },
    /// What is left of what may have been lost?
    Remains {
        /// Several things at once.
        of: Vec<Remain>,
    },
}

/// What a server answers another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerReply {
    /// It is done.
    Done,
    /// The answer to a meeting.
    Met(Met),
    /// Something about names, in the store's own words.
    Names {
        /// What is told.
        told: Vec<u8>,
    },
    /// The beat was heard.
    Alive {
        /// Which life of the server this is: what an earlier one said counts no more.
        life: u64,
    },
    /// The token is good.
    Vouched(Vouched),
    /// What is held of the file.
    Facts(Held),
    /// What the entries add to the directory.
    Share {
        /// So many directories.
        subdirs: u32,
        /// Their last change.
        touched: Option<Stamp>,
    },
    /// What became of the change.
    Fate {
        /// Whether it is made; nothing while that is open.
        done: Option<bool>,
    },
    /// Where the file is in the back end.
    Behind {
        /// Nothing if it is not there.
        place: Option<Place>,
    },
    /// What is left, in the order of the questions.
    Remains(Vec<Remains>),
}

/// A server introduces itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meeting {
    /// Which one.
    pub server: ServerId,
    /// Which life of its store.
    pub incarnation: Incarnation,
    /// Whether it has joined the service with this store.
    pub joined: bool,
    /// Whom it takes for the service.
    pub members: Members,
}

/// What the one that was met says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Met {
    /// Which one.
    pub server: ServerId,
    /// Which life of its store.
    pub incarnation: Incarnation,
    /// Whether it has joined the service with this store.
    pub joined: bool,
    /// How often the store of the one that introduced itself was replaced; `None` if it was not known before.
    pub replaced: Option<u16>,
    /// The first id that it has not handed out.
    pub next_id: FileId,
}

/// What the holder of a good token has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vouched {
    /// Bytes below this offset that the asker does not find were lost with an earlier life of its store.
    pub lost_below: u64,
    /// Whether the file has a set-id bit.
    pub set_id: bool,
}

/// Where a file is in the back end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The names that lead there.
    pub path: Vec<Name>,
    /// Which file that is there, whatever its name.
    pub serial: u64,
}

/// What a server holds of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Behind its last byte.
    pub size: u64,
    /// The last change.
    pub touched: Option<Stamp>,
    /// Bytes in the buffer.
    pub buffered: u64,
}
