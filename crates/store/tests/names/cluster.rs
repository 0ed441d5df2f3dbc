//! Several servers in one process: messages are function calls, and a test can lose messages and crash servers.

use crate::common::open_root;
use forebay_model::{Error, ErrorKind, FileId, Identity, Member, Members, Result, ServerId, Stamp};
use forebay_store::{
    AfterReply, Attempt, Carried, Kv, MemoryKv, NameReply, NameRequest, Names, Next, Obstacle, Op as Deed,
    Stopped, Task, Withdrawal, check_all,
};
use forebay_testkit::Rng;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Number of retries after which a test reports an endless loop.
const PATIENCE: u32 = 20_000;

/// A fault at an event of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The message is lost.
    Cut,
    /// The sender crashes, with its machine if set.
    Sender { machine: bool },
    /// The receiver crashes.
    Receiver { machine: bool },
}

/// The users of the servers, which determine how waiting works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Users {
    /// One at a time: no operation ever has to wait.
    One,
    /// Several in turns: an operation that has to wait gives another its turn.
    Turns,
    /// Several threads.
    Threads,
}

/// One server.
struct Node {
    kv: RwLock<Arc<MemoryKv>>,
    names: RwLock<Option<Arc<Names>>>,
    /// Whether the leases on the directories of each other server are valid.
    leases: Arc<Vec<AtomicBool>>,
}

pub(crate) struct Cluster {
    pub(crate) members: Arc<Members>,
    nodes: Vec<Node>,
    /// Number of events so far: every message before it arrives, and every reply.
    pub(crate) events: AtomicU64,
    fault: Mutex<Option<(u64, Fault)>>,
    /// The users of the servers.
    pub(crate) users: Users,
}

fn members(count: u16) -> Arc<Members> {
    let member = |n| Member { server: ServerId(n), address: format!("tcp:h{n}:1"), socket: None };
    Arc::new(Members::new(1, (0..count).map(member).collect()).expect("a good list"))
}

fn gone(server: ServerId) -> Error {
    Error::new(ErrorKind::Unreachable, format!("server {server} does not answer"))
}

impl Cluster {
    pub(crate) fn new(count: u16) -> Cluster {
        let members = members(count);
        let format = |server: ServerId| {
            let kv = MemoryKv::new();
            let root = (server == members.first()).then(open_root);
            Names::format(&kv, server, root, Stamp(1)).expect("an empty store");
            kv
        };
        Cluster::with(&members, members.servers().map(format).collect())
    }

    fn with(members: &Arc<Members>, kvs: Vec<MemoryKv>) -> Cluster {
        let node = |kv| {
            let leases = Arc::new(members.servers().map(|_| AtomicBool::new(true)).collect());
            Node { kv: RwLock::new(Arc::new(kv)), names: RwLock::new(None), leases }
        };
        let cluster = Cluster {
            members: Arc::clone(members),
            nodes: kvs.into_iter().map(node).collect(),
            events: AtomicU64::new(0),
            fault: Mutex::new(None),
            users: Users::One,
        };
        members.servers().for_each(|server| cluster.start(server));
        cluster
    }

    /// The same servers, all just started, with everything on their disks.
    pub(crate) fn fork(&self) -> Cluster {
        let kvs = self.members.servers().map(|server| self.kv(server).crash(usize::MAX)).collect();
        Cluster::with(&self.members, kvs)
    }

    fn node(&self, server: ServerId) -> &Node {
        &self.nodes[usize::from(server.0)]
    }

    pub(crate) fn kv(&self, server: ServerId) -> Arc<MemoryKv> {
        self.node(server).kv.read().expect("no panic").clone()
    }

    /// Starts a server with its store; all leases from its former run end at once.
    pub(crate) fn start(&self, server: ServerId) {
        let names = Names::open(self.kv(server), server).expect("a sound store opens");
        let leases = Arc::clone(&self.node(server).leases);
        let leased = move |of: ServerId| leases[usize::from(of.0)].load(Ordering::SeqCst);
        names.join(self.members.clone(), Box::new(leased)).expect("a member");
        names.outlived_leases();
        for other in &self.nodes {
            if let Some(names) = other.names.read().expect("no panic").as_ref() {
                names.forget_copies(server);
            }
        }
        *self.node(server).names.write().expect("no panic") = Some(Arc::new(names));
    }

    /// Crashes a server; if its machine crashes too, unsynced data is lost.
    pub(crate) fn crash(&self, server: ServerId, machine: bool) {
        let node = self.node(server);
        *node.names.write().expect("no panic") = None;
        let mut kv = node.kv.write().expect("no panic");
        *kv = Arc::new(kv.crash(if machine { 0 } else { usize::MAX }));
    }

    pub(crate) fn names(&self, server: ServerId) -> Result<Arc<Names>> {
        self.node(server).names.read().expect("no panic").clone().ok_or_else(|| gone(server))
    }

    pub(crate) fn sync(&self) {
        self.members.servers().for_each(|server| self.kv(server).sync().expect("memory"));
    }

    /// Schedules a fault at the `nth` event.
    pub(crate) fn plan(&self, nth: u64, fault: Fault) {
        *self.fault.lock().expect("no panic") = Some((nth, fault));
    }

    fn event(&self, from: ServerId, to: ServerId) -> Result<()> {
        let number = self.events.fetch_add(1, Ordering::SeqCst);
        let due = {
            let mut fault = self.fault.lock().expect("no panic");
            match *fault {
                Some((at, _)) if at == number => fault.take(),
                _ => None,
            }
        };
        match due {
            None => Ok(()),
            Some((_, Fault::Cut)) => Err(gone(to)),
            Some((_, Fault::Sender { machine })) => {
                self.crash(from, machine);
                Err(gone(from))
            }
            Some((_, Fault::Receiver { machine })) => {
                self.crash(to, machine);
                Err(gone(to))
            }
        }
    }

    /// Sends a request from one server to another.
    pub(crate) fn send(
        &self,
        from: ServerId,
        to: ServerId,
        ask: &NameRequest,
        now: Stamp,
    ) -> Result<NameReply> {
        let ask = NameRequest::decode(&ask.encode())?;
        self.event(from, to)?;
        self.names(from)?;
        let reply = match &ask {
            NameRequest::Carry(who, deed) => NameReply::Carried(self.carry_out(to, who, deed, now)?),
            // It would wait for an operation that does not have its turn.
            NameRequest::AwaitUnlock(_) if self.users == Users::Turns => NameReply::Done,
            ask => self.attempt(to, now, |names| names.answer(from, ask))?,
        };
        self.event(from, to)?;
        self.names(from)?;
        NameReply::decode(&reply.encode())
    }

    /// Runs an operation on a server and resolves its obstacles.
    pub(crate) fn attempt<T>(
        &self,
        at: ServerId,
        now: Stamp,
        deed: impl Fn(&Names) -> Attempt<T>,
    ) -> Result<T> {
        let mut withdrawals = Vec::new();
        let patience = if self.users == Users::Turns { 20 } else { PATIENCE };
        for _ in 0..patience {
            match deed(&*self.names(at)?) {
                Err(Stopped::Obstacle(Obstacle::Copies(dir))) => {
                    withdrawals.push(self.withdraw(at, dir, now)?);
                }
                Err(Stopped::Obstacle(obstacle)) => {
                    withdrawals.clear();
                    self.clear(at, &obstacle, now)?;
                }
                done => return done.map_err(Error::from),
            }
        }
        Err(Error::new(ErrorKind::Busy, "the operation does not end"))
    }

    /// All other servers drop their copies; a server that does not reply loses its lease.
    fn withdraw(&self, at: ServerId, dir: FileId, now: Stamp) -> Result<Withdrawal> {
        let mut withdrawal = self.names(at)?.withdraw(dir);
        for other in self.members.servers().filter(|&other| other != at) {
            if self.send(at, other, &NameRequest::Drop(dir), now).is_err() {
                self.names(at)?;
                self.node(other).leases[usize::from(at.0)].store(false, Ordering::SeqCst);
                if let Ok(names) = self.names(other) {
                    names.forget_copies(at);
                }
            }
        }
        withdrawal.complete();
        Ok(withdrawal)
    }

    fn clear(&self, at: ServerId, obstacle: &Obstacle, now: Stamp) -> Result<()> {
        let names = self.names(at)?;
        let Some(question) = names.question(obstacle) else {
            self.pause();
            return Ok(());
        };
        // A server that handles requests also replies to heartbeats.
        self.node(at).leases[usize::from(question.server.0)].store(true, Ordering::SeqCst);
        let reply = self.send(at, question.server, &question.ask, now)?;
        if names.take_reply(question, reply)? == AfterReply::Pause {
            self.pause();
        }
        Ok(())
    }

    fn pause(&self) {
        if self.users == Users::Threads {
            std::thread::sleep(std::time::Duration::from_micros(self.events.load(Ordering::Relaxed) % 97));
        }
    }

    /// Carries out an operation on its coordinator to the end.
    pub(crate) fn carry_out(&self, at: ServerId, who: &Identity, deed: &Deed, now: Stamp) -> Result<Carried> {
        let mut runner = self.runner(at, who, deed, now)?;
        for _ in 0..PATIENCE {
            if let Some(result) = runner.step(self) {
                while runner.step(self).is_some() {}
                return result;
            }
        }
        Err(Error::new(ErrorKind::Busy, "the task does not end"))
    }

    /// A task to be carried out step by step.
    pub(crate) fn runner(&self, at: ServerId, who: &Identity, deed: &Deed, now: Stamp) -> Result<Runner> {
        let names = self.names(at)?;
        let task = Some(names.task(who.clone(), deed.clone(), now));
        Ok(Runner {
            at,
            now,
            names,
            task,
            asks: VecDeque::new(),
            replies: Vec::new(),
            withdrawals: Vec::new(),
            notify: VecDeque::new(),
        })
    }

    fn notify(&self, at: ServerId, to: ServerId, ask: &NameRequest, now: Stamp) {
        let NameRequest::Finish(intent, _) = *ask else { panic!("only outcomes are sent: {ask:?}") };
        if self.send(at, to, ask, now).is_ok()
            && let Ok(names) = self.names(at)
        {
            names.acknowledged(to, intent).expect("memory");
        }
    }

    /// Restarts all crashed servers.
    pub(crate) fn restart(&self) {
        *self.fault.lock().expect("no panic") = None;
        for server in self.members.servers() {
            if self.names(server).is_err() {
                self.start(server);
            }
        }
    }

    /// Resolves all open intents.
    pub(crate) fn resolve_all(&self, now: Stamp) {
        for server in self.members.servers() {
            let names = self.names(server).expect("it runs");
            for intent in names.prepared() {
                self.clear(server, &Obstacle::Intent(intent), now).expect("all run");
            }
            for (to, ask) in names.unfinished().expect("memory") {
                self.notify(server, to, &ask, now);
            }
            assert_eq!(names.prepared(), [], "server {server} has resolved all intents");
        }
    }

    pub(crate) fn check(&self) -> Vec<String> {
        let kvs: Vec<_> = self.members.servers().map(|server| self.kv(server)).collect();
        check_all(&self.members, &kvs.iter().map(|kv| &**kv as &dyn Kv).collect::<Vec<_>>())
    }
}

/// A task and its pending requests.
pub(crate) struct Runner {
    at: ServerId,
    now: Stamp,
    names: Arc<Names>,
    task: Option<Task>,
    /// Requests to send, and replies received so far.
    asks: VecDeque<(ServerId, NameRequest)>,
    replies: Vec<Result<NameReply>>,
    withdrawals: Vec<Withdrawal>,
    notify: VecDeque<(ServerId, NameRequest)>,
}

impl Runner {
    /// Makes one step; returns the result at the end, and again for every server that is notified afterwards.
    pub(crate) fn step(&mut self, cluster: &Cluster) -> Option<Result<Carried>> {
        let Some(task) = &mut self.task else {
            let (to, ask) = self.notify.pop_front()?;
            cluster.notify(self.at, to, &ask, self.now);
            return Some(Ok(Carried::default()));
        };
        if let Err(error) = cluster.names(self.at) {
            self.task = None;
            return Some(Err(error));
        }
        if let Some((to, ask)) = self.asks.pop_front() {
            self.replies.push(cluster.send(self.at, to, &ask, self.now));
            return None;
        }
        match task.next(&self.names, std::mem::take(&mut self.replies)) {
            Next::NameRequest(asks) => {
                self.withdrawals.clear();
                self.asks = asks.into();
            }
            Next::Obstacle(Obstacle::Copies(dir)) => match cluster.withdraw(self.at, dir, self.now) {
                Ok(withdrawal) => self.withdrawals.push(withdrawal),
                Err(error) => return self.fail(error),
            },
            Next::Obstacle(obstacle) => {
                self.withdrawals.clear();
                match cluster.clear(self.at, &obstacle, self.now) {
                    Err(error) if error.kind() == ErrorKind::Busy => {}
                    Err(error) => return self.fail(error),
                    Ok(()) => {}
                }
            }
            Next::Done(result, notify) => {
                (self.task, self.notify) = (None, notify.into());
                self.withdrawals.clear();
                return Some(result);
            }
        }
        None
    }

    fn fail(&mut self, error: Error) -> Option<Result<Carried>> {
        self.task = None;
        Some(Err(error))
    }
}

/// A random fault.
pub(crate) fn any_fault(random: &mut Rng) -> Fault {
    let machine = random.one_in(2);
    *random.pick(&[Fault::Cut, Fault::Sender { machine }, Fault::Receiver { machine }])
}
