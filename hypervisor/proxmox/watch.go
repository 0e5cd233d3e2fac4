// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// taskMissing is how long a task may be absent from its node's list before it is asked
	// for by name: the list is bounded, and a node writes its ended tasks down in turn.
	taskMissing = 3 * time.Second
	// taskPause bounds the pause between two looks at a node's tasks: so much time is lost
	// at most of each. taskPauseFailed is the pause after a failed look.
	taskPause       = time.Second
	taskPauseFailed = 5 * time.Second
	// taskShare is the part of a task's age that is waited before the next look, once it
	// runs longer than its kind did lately.
	taskShare = 8
	// statusLag is how old the status in /cluster/resources may be: it is broadcast every
	// ten seconds (pvestatd).
	statusLag = 12 * time.Second
	// wakeAgain is when an owner that was woken for a stopped machine is woken again.
	wakeAgain = 5 * time.Second
	// agentFirst is how long after the start the guest's agent is asked first.
	agentFirst = 20 * time.Second
)

// task is a task of Proxmox that is waited for. Its fields are the watcher's.
type task struct {
	w    *watcher
	upid string
	node string
	// kind is its type, such as qmclone.
	kind string
	// started is by the node's clock, in seconds; added by ours.
	started int64
	added   time.Time
	waits   []taskWait

	missing time.Time
	exit    string
	done    bool
}

// taskWait is somebody who waits for a task.
type taskWait struct {
	owner  hypervisor.Owner
	onDone func()
}

// result gives the exit status once the task has ended.
func (t *task) result() (exit string, done bool) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()

	return t.exit, t.done
}

// pending tells whether a task is still waited for; no task is not.
func (t *task) pending() bool {
	if t == nil {
		return false
	}

	_, done := t.result()

	return !done
}

// watched is a machine whose end is watched for.
type watched struct {
	owner hypervisor.Owner
	id    int
	// since is when it was started; seen says that the listing has shown it running.
	since    time.Time
	seen     bool
	woken    time.Time
	agentDue time.Time
}

// watcher is the one poller of a connection. Its goroutine lives while there is
// something to watch.
type watcher struct {
	client *client
	// member tells whether a node is part of the cluster.
	member              func(ctx context.Context, node string) bool
	clock               clock.WithTicker
	listing             *cached[snapshot]
	gates               *gates
	wake                func(hypervisor.Owner)
	taskEvery           time.Duration
	listBusy, listQuiet time.Duration

	ctx    context.Context //nolint:containedctx // ends with the connection
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running bool
	tasks   map[string]*task
	// looks holds, by node, when its tasks are looked at next; zero while they are.
	looks map[string]time.Time
	// took holds how long tasks took lately, by kind.
	took     map[string]time.Duration
	machines map[string]*watched
}

// add waits for a task. onDone runs once, before the owner is woken.
func (w *watcher) add(upid string, owner hypervisor.Owner, onDone func()) *task {
	wait := taskWait{owner: owner, onDone: onDone}

	parsed, err := ParseUPID(upid)
	if err != nil {
		// A task that can't be watched is looked at as one whose end was lost.
		if onDone != nil {
			onDone()
		}

		return &task{w: w, upid: upid, done: true, exit: exitLost}
	}

	defer w.kick()

	w.mu.Lock()
	defer w.mu.Unlock()

	t, ok := w.tasks[upid]
	if !ok {
		t = &task{w: w, upid: upid, node: parsed.Node, kind: parsed.Type, started: parsed.Start.Unix(), added: w.clock.Now()}
		w.tasks[upid] = t
	}

	t.waits = append(t.waits, wait)

	return t
}

// run watches for a machine's end. agent says that its guest agent will be asked.
func (w *watcher) run(owner hypervisor.Owner, id int, since time.Time, agent bool) {
	w.mu.Lock()
	if _, ok := w.machines[owner.UID]; !ok {
		m := &watched{owner: owner, id: id, since: since}
		if agent {
			m.agentDue = since.Add(agentFirst)
		}

		w.machines[owner.UID] = m
	}
	w.mu.Unlock()

	w.kick()
}

// forget ends the watch of a machine.
func (w *watcher) forget(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.machines, uid)
}

// addressed ends the questions for a machine's address.
func (w *watcher) addressed(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if m, ok := w.machines[uid]; ok {
		m.agentDue = time.Time{}
	}
}

// sawRunning tells whether a listing has shown the machine running since its start.
func (w *watcher) sawRunning(uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	m, ok := w.machines[uid]

	return ok && m.seen
}

// kick starts the poller if it does not run.
func (w *watcher) kick() {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.running || w.ctx.Err() != nil {
		return
	}

	w.running = true
	w.wg.Add(1)

	go w.loop()
}

// close ends the poller and waits for it.
func (w *watcher) close() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *watcher) loop() {
	defer w.wg.Done()

	wait := w.taskEvery

	for {
		timer := w.clock.NewTimer(wait)

		select {
		case <-w.ctx.Done():
			timer.Stop()

			return
		case <-timer.C():
		}

		waiting, over := w.pass()
		if over {
			return
		}

		// While machines wait for a place to clone, each moment between the end of one
		// clone and the start of the next is lost to all of them.
		wait = w.taskEvery
		if waiting {
			wait /= 2
		}
	}
}

// pass looks once at everything. It tells whether machines wait for a place, and whether
// nothing is left to watch.
func (w *watcher) pass() (waiting, over bool) {
	w.pollTasks()
	w.pollMachines()

	waiting = w.gates.tick()

	w.mu.Lock()
	defer w.mu.Unlock()

	if waiting || len(w.tasks) > 0 || len(w.machines) > 0 {
		return waiting, false
	}

	w.running = false

	return false, true
}

// pollTasks looks at the tasks that are waited for: one call for each node that has some,
// side by side, so that a node that does not answer keeps no other waiting.
func (w *watcher) pollTasks() {
	w.mu.Lock()
	defer w.mu.Unlock()

	now := w.clock.Now()

	for node, since := range w.oldest() {
		next, looked := w.looks[node]
		if looked && (next.IsZero() || now.Before(next)) || w.ctx.Err() != nil {
			continue
		}

		w.looks[node] = time.Time{}
		w.wg.Go(func() { w.pollNode(node, since) })
	}
}

// oldest gives, for each node with tasks that are waited for, when the first of them was
// started. w.mu is held.
func (w *watcher) oldest() map[string]int64 {
	out := map[string]int64{}

	for _, t := range w.tasks {
		if at, ok := out[t.node]; !ok || t.started < at {
			out[t.node] = t.started
		}
	}

	return out
}

// pollNode looks at the tasks of one node.
func (w *watcher) pollNode(node string, since int64) {
	listed, err := w.client.tasksSince(w.ctx, node, since)
	if err == nil {
		byName := make(map[string]listedTask, len(listed))
		for _, t := range listed {
			byName[t.UPID] = t
		}

		for _, t := range w.sort(node, byName) {
			w.ask(t)
		}
	}

	if err != nil && !w.member(w.ctx, node) {
		w.loseTasks(node)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.looks[node] = w.clock.Now().Add(w.pause(node, err))
}

// loseTasks ends the wait for the tasks of a node that was removed from the cluster.
func (w *watcher) loseTasks(node string) {
	w.mu.Lock()

	var lost []*task

	for _, t := range w.tasks {
		if t.node == node {
			lost = append(lost, t)
		}
	}
	w.mu.Unlock()

	for _, t := range lost {
		w.finish(t, exitLost)
	}
}

// pause is how long a node's tasks are left alone: until the first of them can be
// expected to end, and then the longer they run already, the longer. w.mu is held.
func (w *watcher) pause(node string, err error) time.Duration {
	if err != nil {
		return max(taskPauseFailed, w.taskEvery)
	}

	pause := taskPause

	for _, t := range w.tasks {
		if t.node == node {
			age := w.clock.Since(t.added)
			pause = min(pause, max(w.took[t.kind]-age, age/taskShare, w.least(t)))
		}
	}

	return max(w.taskEvery, pause) - w.taskEvery
}

// least is the least pause before a task is looked at again: one look serves more of them. For a
// clone's end others wait, for that of most others their own machine, and for that of a removal
// nobody.
func (w *watcher) least(t *task) time.Duration {
	switch t.kind {
	case taskClone:
		return w.taskEvery
	case taskDestroy, taskDeleteISO:
		return 4 * w.taskEvery //nolint:mnd // a second by default: all that a task may lose
	default:
		return 2 * w.taskEvery //nolint:mnd // half of that
	}
}

func (w *watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return len(w.tasks)
}

// sort finishes a node's tasks that have ended and gives those that are long missing.
func (w *watcher) sort(node string, listed map[string]listedTask) []*task {
	w.mu.Lock()

	var ended, missing []*task

	exits := map[*task]string{}
	now := w.clock.Now()

	for upid, t := range w.tasks {
		if t.node != node {
			continue
		}

		entry, ok := listed[upid]

		switch {
		case ok && entry.done():
			exits[t] = entry.Status
			ended = append(ended, t)
		case ok:
			t.missing = time.Time{}
		case t.missing.IsZero():
			t.missing = now
		case now.Sub(t.missing) >= taskMissing:
			missing = append(missing, t)
			t.missing = now
		}
	}
	w.mu.Unlock()

	for _, t := range ended {
		w.finish(t, exits[t])
	}

	return missing
}

// ask looks at one task by its name.
func (w *watcher) ask(t *task) {
	status, err := w.client.taskStatus(w.ctx, t.node, t.upid)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		w.finish(t, exitLost)
	case err == nil && status.Status == "stopped":
		w.finish(t, status.ExitStatus)
	}
}

// finish ends the wait for a task and wakes whose it is.
func (w *watcher) finish(t *task, exit string) {
	w.mu.Lock()
	delete(w.tasks, t.upid)

	waits := t.waits
	t.waits, t.done, t.exit = nil, true, exit

	if taskSucceeded(exit) {
		// A little less, so that it follows tasks that become shorter.
		age := w.clock.Since(t.added)
		w.took[t.kind] = (w.took[t.kind] + age - age/taskShare) / 2 //nolint:mnd // the latest counts half
	}
	w.mu.Unlock()

	for _, wait := range waits {
		if wait.onDone != nil {
			wait.onDone()
		}

		w.wake(wait.owner)
	}
}

// listAge is how old the listing may be now.
func (w *watcher) listAge() time.Duration {
	if w.count() > 0 {
		return w.listBusy
	}

	return w.listQuiet
}

// pollMachines wakes the owners whose machines are not running any more, or whose
// guest agent is worth asking.
func (w *watcher) pollMachines() {
	w.mu.Lock()
	idle := len(w.machines) == 0
	w.mu.Unlock()

	if idle {
		return
	}

	snap, at, err := w.listing.get(w.ctx, w.listAge())
	if err != nil {
		return
	}

	now := w.clock.Now()

	var wake []hypervisor.Owner

	w.mu.Lock()
	for _, m := range w.machines {
		if at.After(m.since) && m.due(snap, now) && now.Sub(m.woken) >= wakeAgain {
			m.woken = now
			wake = append(wake, m.owner)
		}
	}
	w.mu.Unlock()

	for _, owner := range wake {
		w.wake(owner)
	}
}

// due tells whether the machine's owner should look at it.
func (m *watched) due(snap snapshot, now time.Time) bool {
	r, ok := snap[m.id]

	switch {
	case !ok:
		return true
	case r.Status == statusRunning:
		m.seen = true

		if !m.agentDue.IsZero() && now.After(m.agentDue) {
			m.agentDue = now.Add(agentWait(m.since, now))

			return true
		}

		return false
	case r.Status == statusStopped:
		return m.seen || now.Sub(m.since) >= statusLag
	default:
		return false
	}
}

// Statuses in /cluster/resources and status/current.
const (
	statusRunning = "running"
	statusStopped = "stopped"
)

// snapshot is one listing of the cluster's machines, by id.
type snapshot map[int]resource

func (c *client) snapshot(ctx context.Context) (snapshot, error) {
	resources, err := c.resources(ctx)
	if err != nil {
		return nil, err
	}

	out := make(snapshot, len(resources))
	for _, r := range resources {
		out[r.VMID] = r
	}

	return out, nil
}
