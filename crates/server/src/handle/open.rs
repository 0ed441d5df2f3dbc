//! Open files: made, re-asserted, claimed by requests, synced, closed.

use super::vanished;
use crate::members::check_maker;
use crate::opens::Hold;
use crate::service::{Caller, Service};
use crate::several::{Handled, Stop};
use forebay_model::{
    Access, Attr, Error, ErrorKind, FileId, FileKind, Incarnation, Layout, Name, Result, Striping,
};
use forebay_store::{Body, Facts, Found, Inode};
use forebay_wire::{IfExists, Reply, Token};
use std::sync::Arc;

/// Bytes in a stripe; with one server, a formality.
const STRIPE: u64 = 4 << 20;
/// Most servers that a file is laid out over.
const MOST_SERVERS: usize = 64;
/// How often a create starts again because the name came or went meanwhile.
const TRIES: u32 = 100;
/// The set-user-id and set-group-id bits of a mode.
pub(crate) const SET_ID: u16 = 0o6000;

impl Service {
    pub(super) fn open(&self, caller: &Caller, file: FileId, access: Access, truncate: bool) -> Handled {
        self.reach(caller, file)?;
        self.refresh_in(file, caller.helps.order())?;
        let hold = Arc::new(self.opens.hold(file)?);
        let inode = self.store.names().check_open(&caller.who, file, access).map_err(vanished)?;
        note_set_id(&hold, &inode);
        self.opened(caller, file, inode, access, truncate, hold)
    }

    pub(super) fn create(
        &self,
        caller: &Caller,
        (dir, name): (FileId, &Name),
        mode: u16,
        access: Access,
        if_exists: IfExists,
    ) -> Handled {
        self.reach(caller, dir)?;
        // Asked before anything is made: who is refused has changed nothing.
        self.opens.check_room()?;
        caller.session.check_room()?;
        for _ in 0..TRIES {
            self.meet_in(dir, name, caller.helps.order())?;
            let (layout, lives) = self.new_layout(caller, (dir, name))?;
            // Held before anybody sees it: nobody buries it meanwhile, or gives it a set-id bit without a word.
            let hold = |file| self.opens.hold(file).map(Arc::new);
            let names = self.store.names();
            let made = names.create_file(&caller.who, dir, name, mode, layout, lives, self.now(), hold);
            match made.map_err(Stop::from) {
                Ok((file, inode, hold)) => {
                    note_set_id(&hold, &inode);
                    // Whoever makes a file has it open as he likes, whatever its mode.
                    let token = self.seal(caller, file, access);
                    caller.session.insert(token, hold)?;
                    // As it was made: empty.
                    let attr = self.shown(file, &inode, &Facts::default());
                    return Ok(self.opened_reply(token, attr, inode, true));
                }
                Err(Stop::Failed(error))
                    if error.kind() == ErrorKind::Exists && if_exists != IfExists::Refuse =>
                {
                    let truncate = if_exists == IfExists::Truncate;
                    if let Some(reply) = self.open_entry(caller, dir, name, access, truncate)? {
                        return Ok(reply);
                    }
                }
                Err(stop) => return Err(stop),
            }
        }
        let text = format!("{name:?} in directory {dir} came and went {TRIES} times: try again");
        Err(Error::new(ErrorKind::Busy, text).into())
    }

    /// Where the bytes of a new file go, and which lives of stores that is: as the directory says; else on one
    /// server for clients on this machine, and over all, beginning with that one, for all others.
    fn new_layout(
        &self,
        caller: &Caller,
        (dir, name): (FileId, &Name),
    ) -> Result<(Layout, Vec<Incarnation>), Stop> {
        let (own, here) = (self.config.server, self.store.incarnation());
        if self.is_alone() {
            return Ok((Layout::whole(own, STRIPE), vec![here]));
        }
        let striping = match (self.store.names().dir(dir)?.striping, caller.local) {
            (Some(striping), _) => striping,
            (None, true) => Striping { width: 1, stripe: STRIPE },
            (None, false) => Striping { width: 0, stripe: STRIPE },
        };
        Ok(self.laid_out(striping, (dir, name)))
    }

    /// Over which servers the bytes of a file go that is laid out like this, and which lives of stores that is.
    pub(crate) fn laid_out(
        &self,
        striping: Striping,
        (dir, name): (FileId, &Name),
    ) -> (Layout, Vec<Incarnation>) {
        let (own, here) = (self.config.server, self.store.incarnation());
        let width = if striping.width == 0 { MOST_SERVERS } else { usize::from(striping.width) };
        let members = self.members.members();
        // Where all are home to names, this is the name's.
        let place = members.place(dir, name);
        let first = members.servers().position(|server| server == place).unwrap_or(0);
        let in_turn = members.servers().skip(first).chain(members.servers().take(first));
        let known = in_turn.filter_map(|server| match server == own {
            true => Some((own, here)),
            false => self.joining.known(server).map(|(incarnation, _)| (server, incarnation)),
        });
        let (servers, lives) = known.take(width.min(MOST_SERVERS)).unzip();
        (Layout { servers, stripe: striping.stripe }, lives)
    }

    /// Opens what has a name; `None` if it went meanwhile.
    fn open_entry(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &Name,
        access: Access,
        truncate: bool,
    ) -> Result<Option<Reply>, Stop> {
        let names = self.store.names();
        let Some(found) = unless_gone(names.lookup(&caller.who, dir, name))? else { return Ok(None) };
        let file = match found {
            Found::Here(file, _) => file,
            Found::Away(file, _) => return Ok(Some(Reply::At { dir, file, rest: Vec::new() })),
        };
        let Some(hold) = unless_gone(self.opens.hold(file))?.map(Arc::new) else { return Ok(None) };
        let Some(inode) = unless_gone(names.check_open(&caller.who, file, access))? else { return Ok(None) };
        note_set_id(&hold, &inode);
        self.opened(caller, file, inode, access, truncate, hold).map(Some)
    }

    fn opened(
        &self,
        caller: &Caller,
        file: FileId,
        inode: Inode,
        access: Access,
        truncate: bool,
        hold: Arc<Hold>,
    ) -> Handled {
        if truncate && inode.kind() == FileKind::File {
            if !access.write {
                let text = "a file is cut to nothing only by those who open it for writing";
                return Err(Error::new(ErrorKind::Invalid, text).into());
            }
            self.set_length(caller, &hold, 0)?;
        }
        // Cutting it may have taken set-id bits away.
        let after = if truncate { self.store.names().inode(file).map_err(vanished)? } else { inode };
        let token = self.seal(caller, file, access);
        let reply = self.opened_reply(token, self.attr(caller, file, &after)?, after, false);
        caller.session.insert(token, hold)?;
        Ok(reply)
    }

    fn opened_reply(&self, token: Token, attr: Attr, inode: Inode, created: bool) -> Reply {
        let layout = match inode.body {
            Body::File { layout, .. } => layout,
            _ => Layout::whole(self.config.server, STRIPE),
        };
        Reply::Opened { token, attr, layout, created }
    }

    fn seal(&self, caller: &Caller, file: FileId, access: Access) -> Token {
        // Stamps are never given twice, not even by another life of the server.
        let serial = self.now().0;
        Token { file, access, uid: caller.who.uid, serial, seal: [0; 16] }.seal(&self.seal)
    }

    pub(super) fn reopen(&self, caller: &Caller, token: &Token) -> Handled {
        let _hold = self.claim(caller, token, Access::default())?;
        let inode = self.store.names().inode(token.file).map_err(vanished)?;
        Ok(self.opened_reply(*token, self.attr(caller, token.file, &inode)?, inode, false))
    }

    pub(super) fn close(&self, caller: &Caller, token: &Token) -> Handled {
        mine(caller, token)?;
        if caller.session.hold(token).is_none() && !token.is_sealed_by(&self.seal) {
            return Err(forged(token).into());
        }
        // One that was lost with an earlier life of the server or session is closed as well as one can be.
        drop(caller.session.remove(token));
        self.grace.heard_of(token);
        Ok(Reply::Done)
    }

    pub(super) fn sync(&self, caller: &Caller, token: &Token) -> Handled {
        let _hold = self.claim(caller, token, Access::default())?;
        self.ways.synced(token.file);
        // What is there first, then that it is there.
        self.sync_past(token.file)?;
        Ok(self.store.data().sync(token.file).map(|()| Reply::Done)?)
    }

    /// The file behind a token, held while the request lasts. A token that this session does not know is taken as
    /// [`Service::adopt`] says.
    pub(crate) fn claim(&self, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>, Stop> {
        mine(caller, token)?;
        let hold = match caller.session.hold(token) {
            Some(hold) => hold,
            None => self.adopt(caller, token)?,
        };
        if (need.read && !token.access.read) || (need.write && !token.access.write) {
            let what = if need.write { "writing" } else { "reading" };
            let text = format!("file {} is not open for {what}", token.file);
            return Err(Error::new(ErrorKind::BadHandle, text).into());
        }
        Ok(hold)
    }

    /// Whoever changes the bytes of a file, root excepted, takes its set-id bits away.
    pub(crate) fn shed_set_id(&self, caller: &Caller, hold: &Hold) -> Result<()> {
        if caller.who.is_root() || !hold.take_set_id() {
            return Ok(());
        }
        let dropped = self.store.names().drop_set_id(hold.file(), self.now());
        dropped.inspect_err(|_| hold.has_set_id())
    }

    /// Takes a token on its seal if an earlier life of the server made it, while its clients may still come back, or
    /// if another session of its user has it open (a process handed it on). Any other was closed, or its session has
    /// ended: then the file is opened anew, by the rules of the present.
    fn adopt(&self, caller: &Caller, token: &Token) -> Result<Arc<Hold>, Stop> {
        if !token.is_sealed_by(&self.seal) {
            return Err(forged(token).into());
        }
        check_maker(&*self.members, token.file)?;
        if self.members.members().authority(token.file) != self.config.server {
            return Err(Stop::Vouch(*token));
        }
        let hold = Arc::new(self.opens.hold(token.file)?);
        let of_earlier_life = token.serial < self.began.0 && self.grace.lasts();
        let inode = if of_earlier_life || self.sessions.knows(token) {
            self.store.names().inode(token.file)
        } else {
            self.reach(caller, token.file)?;
            self.store.names().check_open(&caller.who, token.file, token.access)
        };
        note_set_id(&hold, &inode.map_err(vanished)?);
        caller.session.insert(*token, hold.clone())?;
        self.grace.heard_of(token);
        Ok(hold)
    }
}

/// `None` for something that is not there any more.
fn unless_gone<T>(result: Result<T, impl Into<Stop>>) -> Result<Option<T>, Stop> {
    match result.map_err(Into::into) {
        Ok(value) => Ok(Some(value)),
        Err(Stop::Failed(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => {
            Ok(None)
        }
        Err(stop) => Err(stop),
    }
}

/// Remembers a set-id bit, for when the file's bytes change.
pub(super) fn note_set_id(hold: &Hold, inode: &Inode) {
    if inode.mode & SET_ID != 0 {
        hold.has_set_id();
    }
}

fn mine(caller: &Caller, token: &Token) -> Result<()> {
    if token.uid == caller.who.uid {
        return Ok(());
    }
    let text = format!("user {} cannot use what user {} has opened", caller.who.uid, token.uid);
    Err(Error::new(ErrorKind::AccessDenied, text))
}

fn forged(token: &Token) -> Error {
    let text = format!("the token for file {} was not made by this service: open the file again", token.file);
    Error::new(ErrorKind::Stale, text)
}
