//! Several servers in one process: a network that is a function call, cut and crashed wherever a test wants.

use crate::common::open_root;
use forebay_dice::Dice;
use forebay_model::{Error, ErrorKind, FileId, Identity, Member, Members, Result, ServerId, Stamp};
use forebay_store::{
    Ask, Attempt, Carried, Heard, Kv, MemoryKv, Names, Next, Obstacle, Op as Deed, Stopped, Task, Told,
    Withdrawal, check_all,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// How often an operation is tried again before a test calls that endless.
const PATIENCE: u32 = 20_000;

/// What goes wrong at an event of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mishap {
    /// The message is lost.
    Cut,
    /// The sender dies; the machine too if so.
    Sender { machine: bool },
    /// The receiver dies.
    Receiver { machine: bool },
}

/// Who uses the servers: whether it is worth to wait for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Users {
    /// Only one at a time: nobody ever has to wait.
    One,
    /// Several in turns: whoever has to wait lets another have a turn.
    Turns,
    /// Several threads.
    Threads,
}

/// One server.
struct Node {
    kv: RwLock<Arc<MemoryKv>>,
    names: RwLock<Option<Arc<Names>>>,
    /// Whether what it knows of another one's directories counts.
    leases: Arc<Vec<AtomicBool>>,
}

pub(crate) struct Cluster {
    pub(crate) members: Arc<Members>,
    nodes: Vec<Node>,
    /// Events so far: every message that is about to arrive, and every answer.
    pub(crate) events: AtomicU64,
    mishap: Mutex<Option<(u64, Mishap)>>,
    /// Who uses it.
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
            mishap: Mutex::new(None),
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

    /// Starts a server with the store it has; its former life's copies end at once everywhere.
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

    /// Kills a server; what was not synced is lost if the machine dies too.
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

    /// Something will go wrong at the `nth` event from the beginning.
    pub(crate) fn plan(&self, nth: u64, mishap: Mishap) {
        *self.mishap.lock().expect("no panic") = Some((nth, mishap));
    }

    fn event(&self, from: ServerId, to: ServerId) -> Result<()> {
        let number = self.events.fetch_add(1, Ordering::SeqCst);
        let due = {
            let mut mishap = self.mishap.lock().expect("no panic");
            match *mishap {
                Some((at, _)) if at == number => mishap.take(),
                _ => None,
            }
        };
        match due {
            None => Ok(()),
            Some((_, Mishap::Cut)) => Err(gone(to)),
            Some((_, Mishap::Sender { machine })) => {
                self.crash(from, machine);
                Err(gone(from))
            }
            Some((_, Mishap::Receiver { machine })) => {
                self.crash(to, machine);
                Err(gone(to))
            }
        }
    }

    /// One server asks another.
    pub(crate) fn ask(&self, from: ServerId, to: ServerId, ask: &Ask, now: Stamp) -> Result<Told> {
        let ask = Ask::decode(&ask.encode())?;
        self.event(from, to)?;
        self.names(from)?;
        let told = match &ask {
            Ask::Carry(who, deed) => Told::Carried(self.carry_out(to, who, deed, now)?),
            // It would wait for somebody whose turn it is not.
            Ask::Settle(_) if self.users == Users::Turns => Told::Done,
            ask => self.attempt(to, now, |names| names.answer(from, ask))?,
        };
        self.event(from, to)?;
        self.names(from)?;
        Told::decode(&told.encode())
    }

    /// Does something at a server, and what is in its way before.
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
        Err(Error::new(ErrorKind::Busy, "this goes on for ever"))
    }

    /// All others drop their copies; whoever does not answer is waited for until its lease is over.
    fn withdraw(&self, at: ServerId, dir: FileId, now: Stamp) -> Result<Withdrawal> {
        let mut withdrawal = self.names(at)?.withdraw(dir);
        for other in self.members.servers().filter(|&other| other != at) {
            if self.ask(at, other, &Ask::Drop(dir), now).is_err() {
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
        // Whoever is asked answers beats too.
        self.node(at).leases[usize::from(question.server.0)].store(true, Ordering::SeqCst);
        let told = self.ask(at, question.server, &question.ask, now)?;
        if names.hear(question, told)? == Heard::Pause {
            self.pause();
        }
        Ok(())
    }

    fn pause(&self) {
        if self.users == Users::Threads {
            std::thread::sleep(std::time::Duration::from_micros(self.events.load(Ordering::Relaxed) % 97));
        }
    }

    /// Carries an operation out at its coordinator, from the beginning to the end.
    pub(crate) fn carry_out(&self, at: ServerId, who: &Identity, deed: &Deed, now: Stamp) -> Result<Carried> {
        let mut runner = self.runner(at, who, deed, now)?;
        for _ in 0..PATIENCE {
            if let Some(result) = runner.step(self) {
                while runner.step(self).is_some() {}
                return result;
            }
        }
        Err(Error::new(ErrorKind::Busy, "this task goes on for ever"))
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
            told: Vec::new(),
            withdrawals: Vec::new(),
            tell: VecDeque::new(),
        })
    }

    fn tell(&self, at: ServerId, to: ServerId, ask: &Ask, now: Stamp) {
        let Ask::Finish(intent, _) = *ask else { panic!("only the end is told: {ask:?}") };
        if self.ask(at, to, ask, now).is_ok()
            && let Ok(names) = self.names(at)
        {
            names.told(to, intent).expect("memory");
        }
    }

    /// All servers that died start again.
    pub(crate) fn restart(&self) {
        *self.mishap.lock().expect("no panic") = None;
        for server in self.members.servers() {
            if self.names(server).is_err() {
                self.start(server);
            }
        }
    }

    /// Everything that was left open is settled.
    pub(crate) fn settle(&self, now: Stamp) {
        for server in self.members.servers() {
            let names = self.names(server).expect("it runs");
            for intent in names.prepared() {
                self.clear(server, &Obstacle::Intent(intent), now).expect("all run");
            }
            for (to, ask) in names.unfinished().expect("memory") {
                self.tell(server, to, &ask, now);
            }
            assert_eq!(names.prepared(), [], "server {server} has settled everything");
        }
    }

    pub(crate) fn check(&self) -> Vec<String> {
        let kvs: Vec<_> = self.members.servers().map(|server| self.kv(server)).collect();
        check_all(&self.members, &kvs.iter().map(|kv| &**kv as &dyn Kv).collect::<Vec<_>>())
    }
}

/// A task, and what it waits for.
pub(crate) struct Runner {
    at: ServerId,
    now: Stamp,
    names: Arc<Names>,
    task: Option<Task>,
    /// What is still to be asked, and what was told so far.
    asks: VecDeque<(ServerId, Ask)>,
    told: Vec<Result<Told>>,
    withdrawals: Vec<Withdrawal>,
    tell: VecDeque<(ServerId, Ask)>,
}

impl Runner {
    /// One step; says what came of it at the end, and again for every server that hears of it then.
    pub(crate) fn step(&mut self, cluster: &Cluster) -> Option<Result<Carried>> {
        let Some(task) = &mut self.task else {
            let (to, ask) = self.tell.pop_front()?;
            cluster.tell(self.at, to, &ask, self.now);
            return Some(Ok(Carried::default()));
        };
        if let Err(error) = cluster.names(self.at) {
            self.task = None;
            return Some(Err(error));
        }
        if let Some((to, ask)) = self.asks.pop_front() {
            self.told.push(cluster.ask(self.at, to, &ask, self.now));
            return None;
        }
        match task.next(&self.names, std::mem::take(&mut self.told)) {
            Next::Ask(asks) => {
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
            Next::Done(result, tell) => {
                (self.task, self.tell) = (None, tell.into());
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

/// A mishap of any sort.
pub(crate) fn any_mishap(random: &mut Dice) -> Mishap {
    let machine = random.one_in(2);
    *random.pick(&[Mishap::Cut, Mishap::Sender { machine }, Mishap::Receiver { machine }])
}
