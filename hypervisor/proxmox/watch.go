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
	// taskMissingTimeout is how long a task may be missing from the task list of its node before it is
	// requested by its UPID. The list is limited, and a node writes its ended tasks to the list one after
	// the other.
	taskMissingTimeout = 3 * time.Second
	// maxTaskInterval is the longest interval between two polls of a node's tasks, and thus the longest
	// delay after the end of a task. failedTaskInterval is the interval after a failed poll.
	maxTaskInterval    = time.Second
	failedTaskInterval = 5 * time.Second
	// taskAgeDivisor sets the interval of a task that runs longer than the recent tasks of its type: the
	// next poll follows after the task's age divided by taskAgeDivisor.
	taskAgeDivisor = 8
	// statusLag is the maximum age of the status in /cluster/resources. pvestatd broadcasts the status
	// every ten seconds.
	statusLag = 12 * time.Second
	// rewakeInterval is the interval at which the owner of a stopped machine is woken again.
	rewakeInterval = 5 * time.Second
	// firstAgentDelay is the delay between the start of a machine and the first request to its guest agent.
	firstAgentDelay = 20 * time.Second
)

// task is a Proxmox task that the watcher waits for. The watcher's mutex guards its fields.
type task struct {
	watcher *watcher
	upid    string
	node    string
	// taskType is the type of the task, such as qmclone.
	taskType string
	// startedAt is in seconds of the node's clock. addedAt is a time of the local clock.
	startedAt int64
	addedAt   time.Time
	waiters   []taskWaiter

	missingSince time.Time
	exitStatus   string
	isDone       bool
}

// taskWaiter is an owner that waits for a task.
type taskWaiter struct {
	owner  hypervisor.Owner
	onDone func()
}

// result returns the exit status of the task, and whether the task has ended.
func (t *task) result() (exit string, hasEnded bool) {
	t.watcher.mu.Lock()
	defer t.watcher.mu.Unlock()

	return t.exitStatus, t.isDone
}

// isPending reports whether the task is still running. A nil task is not pending.
func (t *task) isPending() bool {
	if t == nil {
		return false
	}

	_, hasEnded := t.result()

	return !hasEnded
}

// watchedMachine is a machine whose end the watcher waits for.
type watchedMachine struct {
	owner hypervisor.Owner
	id    int
	// startedAt is the start of the machine. wasSeenRunning is true after the list has shown the machine as
	// running.
	startedAt      time.Time
	wasSeenRunning bool
	wokenAt        time.Time
	agentDueAt     time.Time
}

// watcher is the single poller of a connection. Its goroutine runs only while the watcher waits for a task,
// a machine or a clone slot.
type watcher struct {
	client *client
	// isClusterMember reports whether a node is part of the cluster.
	isClusterMember          func(ctx context.Context, node string) bool
	clock                    clock.WithTicker
	vmCache                  *cached[vmsByID]
	cloneQueues              *cloneQueues
	wake                     func(hypervisor.Owner)
	taskInterval             time.Duration
	busyListAge, idleListAge time.Duration

	ctx    context.Context //nolint:containedctx // canceled when the connection is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	isRunning bool
	tasks     map[string]*task
	// nextPolls maps each node to the time of the next poll of its tasks. The time is zero while a poll
	// runs.
	nextPolls map[string]time.Time
	// taskDurations holds a moving average of the recent task durations by task type.
	taskDurations map[string]time.Duration
	machines      map[string]*watchedMachine
}

// watchTask waits for a task and wakes the owner when the task has ended. onDone runs once, before the
// owner is woken.
func (w *watcher) watchTask(upid string, owner hypervisor.Owner, onDone func()) *task {
	waiter := taskWaiter{owner: owner, onDone: onDone}

	parsed, err := ParseUPID(upid)
	if err != nil {
		// A task with an invalid UPID cannot be watched, so its outcome counts as unknown.
		if onDone != nil {
			onDone()
		}

		return &task{watcher: w, upid: upid, isDone: true, exitStatus: exitUnknown}
	}

	defer w.ensureRunning()

	w.mu.Lock()
	defer w.mu.Unlock()

	t, ok := w.tasks[upid]
	if !ok {
		t = &task{
			watcher: w, upid: upid, node: parsed.Node, taskType: parsed.Type,
			startedAt: parsed.Start.Unix(), addedAt: w.clock.Now(),
		}
		w.tasks[upid] = t
	}

	t.waiters = append(t.waiters, waiter)

	return t
}

// watchMachine watches for the end of a machine. If hasAgent is true, the watcher also wakes the owner when
// the next request to the guest agent is due.
func (w *watcher) watchMachine(owner hypervisor.Owner, id int, startedAt time.Time, hasAgent bool) {
	w.mu.Lock()
	if _, ok := w.machines[owner.UID]; !ok {
		m := &watchedMachine{owner: owner, id: id, startedAt: startedAt}
		if hasAgent {
			m.agentDueAt = startedAt.Add(firstAgentDelay)
		}

		w.machines[owner.UID] = m
	}
	w.mu.Unlock()

	w.ensureRunning()
}

// unwatchMachine stops watching a machine.
func (w *watcher) unwatchMachine(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.machines, uid)
}

// stopAgentQueries stops waking the owner for requests to the guest agent.
func (w *watcher) stopAgentQueries(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if m, ok := w.machines[uid]; ok {
		m.agentDueAt = time.Time{}
	}
}

// hasSeenRunning reports whether the list has shown the machine as running since its start.
func (w *watcher) hasSeenRunning(uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	m, ok := w.machines[uid]

	return ok && m.wasSeenRunning
}

// ensureRunning starts the poller if it is not running.
func (w *watcher) ensureRunning() {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.isRunning || w.ctx.Err() != nil {
		return
	}

	w.isRunning = true
	w.wg.Add(1)

	go w.loop()
}

// close stops the poller and waits for its end.
func (w *watcher) close() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.wg.Wait()
}

// loop polls until the provider closes or pollOnce has nothing to watch.
func (w *watcher) loop() {
	defer w.wg.Done()

	interval := w.taskInterval

	for {
		timer := w.clock.NewTimer(interval)

		select {
		case <-w.ctx.Done():
			timer.Stop()

			return
		case <-timer.C():
		}

		hasWaiting, isIdle := w.pollOnce()
		if isIdle {
			return
		}

		// While machines wait for a clone slot, poll twice as often: if the end of a clone is noticed late, all of
		// these machines start later.
		interval = w.taskInterval
		if hasWaiting {
			interval /= 2
		}
	}
}

// pollOnce polls the tasks, the machines and the clone queues once. hasWaiting is true if an owner waits for a
// clone slot. isIdle is true if nothing is left to watch, and then the poller stops.
func (w *watcher) pollOnce() (hasWaiting, isIdle bool) {
	w.pollTasks()
	w.pollMachines()

	hasWaiting = w.cloneQueues.wakeWaiters()

	w.mu.Lock()
	defer w.mu.Unlock()

	if hasWaiting || len(w.tasks) > 0 || len(w.machines) > 0 {
		return hasWaiting, false
	}

	w.isRunning = false

	return false, true
}

// pollTasks polls the watched tasks with one request for each node that has such tasks. The requests run in
// parallel, so that an unresponsive node does not delay the others.
func (w *watcher) pollTasks() {
	w.mu.Lock()
	defer w.mu.Unlock()

	now := w.clock.Now()

	for node, since := range w.oldestStarts() {
		next, isScheduled := w.nextPolls[node]
		if isScheduled && (next.IsZero() || now.Before(next)) || w.ctx.Err() != nil {
			continue
		}

		w.nextPolls[node] = time.Time{}
		w.wg.Go(func() { w.pollNode(node, since) })
	}
}

// oldestStarts returns the start time of the oldest watched task of each node. The caller must hold w.mu.
func (w *watcher) oldestStarts() map[string]int64 {
	out := map[string]int64{}

	for _, t := range w.tasks {
		if oldest, ok := out[t.node]; !ok || t.startedAt < oldest {
			out[t.node] = t.startedAt
		}
	}

	return out
}

// pollNode polls the tasks of one node.
func (w *watcher) pollNode(node string, since int64) {
	tasks, err := w.client.listTasksSince(w.ctx, node, since)
	if err == nil {
		byUPID := make(map[string]listedTask, len(tasks))
		for _, t := range tasks {
			byUPID[t.UPID] = t
		}

		for _, t := range w.processListedTasks(node, byUPID) {
			w.pollTask(t)
		}
	}

	if err != nil && !w.isClusterMember(w.ctx, node) {
		w.finishLostTasks(node)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.nextPolls[node] = w.clock.Now().Add(w.nextTaskInterval(node, err))
}

// finishLostTasks finishes the tasks of a node that was removed from the cluster, with an unknown outcome.
func (w *watcher) finishLostTasks(node string) {
	w.mu.Lock()

	var lost []*task

	for _, t := range w.tasks {
		if t.node == node {
			lost = append(lost, t)
		}
	}
	w.mu.Unlock()

	for _, t := range lost {
		w.finishTask(t, exitUnknown)
	}
}

// nextTaskInterval returns the time until the next poll of a node's tasks. The next poll is due when the
// first task is expected to end. If tasks run longer than expected, the interval grows with their age. The
// caller must hold w.mu.
func (w *watcher) nextTaskInterval(node string, err error) time.Duration {
	if err != nil {
		return max(failedTaskInterval, w.taskInterval)
	}

	interval := maxTaskInterval

	for _, t := range w.tasks {
		if t.node == node {
			age := w.clock.Since(t.addedAt)
			interval = min(interval, max(w.taskDurations[t.taskType]-age, age/taskAgeDivisor, w.minTaskInterval(t)))
		}
	}

	// The loop makes the poll up to one taskInterval after it is due.
	return max(w.taskInterval, interval) - w.taskInterval
}

// minTaskInterval returns the shortest interval between two polls of a task. A longer interval serves more
// tasks with one request. The end of a clone is polled most often, because other machines wait for its
// slot. For most other tasks, only the task's own machine waits. Nothing waits for the end of a deletion.
func (w *watcher) minTaskInterval(t *task) time.Duration {
	switch t.taskType {
	case taskClone:
		return w.taskInterval
	case taskDestroy, taskDeleteISO:
		return 4 * w.taskInterval //nolint:mnd // 1 s by default, which is also the longest interval (maxTaskInterval)
	default:
		return 2 * w.taskInterval //nolint:mnd // 500 ms by default
	}
}

func (w *watcher) countTasks() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return len(w.tasks)
}

// processListedTasks finishes the ended tasks of a node, and returns the tasks that have been missing from
// the list for taskMissingTimeout.
func (w *watcher) processListedTasks(node string, byUPID map[string]listedTask) []*task {
	w.mu.Lock()

	var ended, missing []*task

	exits := map[*task]string{}
	now := w.clock.Now()

	for upid, t := range w.tasks {
		if t.node != node {
			continue
		}

		entry, ok := byUPID[upid]

		switch {
		case ok && entry.isDone():
			exits[t] = entry.Status
			ended = append(ended, t)
		case ok:
			t.missingSince = time.Time{}
		case t.missingSince.IsZero():
			t.missingSince = now
		case now.Sub(t.missingSince) >= taskMissingTimeout:
			missing = append(missing, t)
			t.missingSince = now
		}
	}
	w.mu.Unlock()

	for _, t := range ended {
		w.finishTask(t, exits[t])
	}

	return missing
}

// pollTask requests the status of one task by its UPID.
func (w *watcher) pollTask(t *task) {
	status, err := w.client.readTaskStatus(w.ctx, t.node, t.upid)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		w.finishTask(t, exitUnknown)
	case err == nil && status.Status == "stopped":
		w.finishTask(t, status.ExitStatus)
	}
}

// finishTask records the exit status of a task and wakes the waiting owners.
func (w *watcher) finishTask(t *task, exit string) {
	w.mu.Lock()
	delete(w.tasks, t.upid)

	waiters := t.waiters
	t.waiters, t.isDone, t.exitStatus = nil, true, exit

	if isTaskSuccess(exit) {
		// The age is reduced slightly, so that the average follows tasks that become shorter.
		age := w.clock.Since(t.addedAt)
		average := w.taskDurations[t.taskType]
		w.taskDurations[t.taskType] = (average + age - age/taskAgeDivisor) / 2 //nolint:mnd // the latest duration counts half
	}
	w.mu.Unlock()

	for _, waiter := range waiters {
		if waiter.onDone != nil {
			waiter.onDone()
		}

		w.wake(waiter.owner)
	}
}

// listMaxAge returns the maximum age of the VM list. The age is shorter while tasks are watched.
func (w *watcher) listMaxAge() time.Duration {
	if w.countTasks() > 0 {
		return w.busyListAge
	}

	return w.idleListAge
}

// pollMachines wakes the owners whose machines have stopped running, or whose guest agents are due for a
// request.
func (w *watcher) pollMachines() {
	w.mu.Lock()
	isIdle := len(w.machines) == 0
	w.mu.Unlock()

	if isIdle {
		return
	}

	vms, listedAt, err := w.vmCache.get(w.ctx, w.listMaxAge())
	if err != nil {
		return
	}

	now := w.clock.Now()

	var owners []hypervisor.Owner

	w.mu.Lock()
	for _, m := range w.machines {
		if listedAt.After(m.startedAt) && m.isDue(vms, now) && now.Sub(m.wokenAt) >= rewakeInterval {
			m.wokenAt = now
			owners = append(owners, m.owner)
		}
	}
	w.mu.Unlock()

	for _, owner := range owners {
		w.wake(owner)
	}
}

// isDue reports whether the machine's owner has to be woken. It also records that the list shows the
// machine as running, and schedules the next request to the guest agent.
func (m *watchedMachine) isDue(vms vmsByID, now time.Time) bool {
	r, ok := vms[m.id]

	switch {
	case !ok:
		return true
	case r.Status == statusRunning:
		m.wasSeenRunning = true

		if !m.agentDueAt.IsZero() && now.After(m.agentDueAt) {
			m.agentDueAt = now.Add(agentInterval(m.startedAt, now))

			return true
		}

		return false
	case r.Status == statusStopped:
		return m.wasSeenRunning || now.Sub(m.startedAt) >= statusLag
	default:
		return false
	}
}

// Statuses in /cluster/resources and status/current.
const (
	statusRunning = "running"
	statusStopped = "stopped"
)
