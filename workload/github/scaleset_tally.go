// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// surplusAfter is how long the statistics may say that fewer jobs are there than were
	// named before the named ones are given up. Statistics were seen to be behind: two
	// that are this far apart must agree.
	surplusAfter = 10 * time.Minute
	// strangersAfter is how long a tally without a memory waits before it stands in for
	// jobs that nobody named: the ledger may know them from before, and count them.
	strangersAfter = time.Minute
	// closedFor is how long a late update of a job that is over is recognised.
	closedFor = time.Hour

	// conclusionLost is the conclusion of a job that is no longer there, and of a stand-in
	// that is no longer needed.
	conclusionLost = "lost"
	unnamed        = "unknown"
)

// Kinds of updates in a scale set's messages.
const (
	jobAvailable = "JobAvailable"
	jobAssigned  = "JobAssigned"
	jobStarted   = "JobStarted"
	jobCompleted = "JobCompleted"
)

// statistics are a scale set's own count of its jobs: assigned are those that wait for a
// runner of the set and those that run on one; available ones are offered to whoever
// acquires them.
type statistics struct {
	Available int `json:"totalAvailableJobs"`
	Assigned  int `json:"totalAssignedJobs"`
	Running   int `json:"totalRunningJobs"`
}

func (s statistics) waiting() int { return max(0, s.Assigned-s.Running) }

// jobUpdate is what a message says of one job. Some services give every assignment of a job
// a request of its own; others give none, and tell assignments apart by their time only.
type jobUpdate struct {
	Kind        string      `json:"messageType"`
	Request     int64       `json:"runnerRequestId"`
	JobID       string      `json:"jobId"`
	Owner       string      `json:"ownerName"`
	Repository  string      `json:"repositoryName"`
	Name        string      `json:"jobDisplayName"`
	WorkflowRef string      `json:"jobWorkflowRef"`
	RunID       int64       `json:"workflowRunId"`
	Labels      []string    `json:"requestLabels"`
	QueuedAt    lenientTime `json:"queueTime"`
	AssignedAt  lenientTime `json:"scaleSetAssignTime"`
	StartedAt   lenientTime `json:"runnerAssignTime"`
	FinishedAt  lenientTime `json:"finishTime"`
	RunnerName  string      `json:"runnerName"`
	Result      string      `json:"result"`
}

// lenientTime is a time that may be missing or unreadable, and is zero then. Servers write
// the year 1 for a time that they do not have.
type lenientTime struct{ time.Time }

// UnmarshalJSON never fails: a message is not to be lost for the sake of a time.
func (t *lenientTime) UnmarshalJSON(text []byte) error {
	if at, err := time.Parse(time.RFC3339Nano, strings.Trim(string(text), `"`)); err == nil && at.Year() > 1 {
		t.Time = at
	}

	return nil
}

// key tells jobs apart that are open at the same time.
func (n jobUpdate) key() string {
	if n.Request > 0 {
		return strconv.FormatInt(n.Request, 10)
	}

	return strings.ToLower(n.JobID)
}

// tallied is one open job.
type tallied struct {
	job workload.Job
	// seen is when a message of the present session spoke of it.
	seen time.Time
	// order in which jobs were first seen of.
	order int
}

// tally is what is known of a scale set's jobs. Its methods are pure but for the tally
// itself, which clone copies.
//
// The rule: messages name jobs, the statistics are the level. Messages can be lost with
// their session, come twice and come late, so after each message, and when none came for a
// while, the two are brought together (settle):
//
//  1. More named jobs run than the level says: the oldest of them are over.
//  2. More named jobs wait than the level says: the oldest of them run by now, as far as
//     the level has running jobs that nobody named, and the others are over.
//  3. Fewer wait than the level says: stand-ins are added, so that there are machines for
//     them, once no message is under way that may yet name them. A stand-in is over as
//     soon as the level says so.
//
// So the jobs that wait are in the end as many as the level says. Jobs that a message of
// this very session spoke of are left alone by 1 and 2 until the statistics have said so
// for surplusAfter.
type tally struct {
	// prefix of the ids of this set's jobs.
	prefix string
	// like is what all jobs of the set have in common.
	like workload.Job
	// site is where people find runs, such as https://github.com.
	site string

	open   map[string]tallied   // by key
	closed map[string]time.Time // ids of jobs that are over
	made   map[string]tallied   // stand-ins, by id

	session string
	began   time.Time
	// strange: this is the first session, and nothing is known of what was before it.
	strange bool

	level   statistics
	levelAt time.Time
	// surplus is since when more jobs were named than the level says.
	surplus time.Time
	orders  int
}

// newTally makes the tally of the scale set with that id. The runners' URL tells sets of
// the same id apart.
func newTally(id int64, url string, like workload.Job) tally {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(strings.ToLower(url)))

	site := url
	if scheme, rest, ok := strings.Cut(url, "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		site = scheme + "://" + host
	}

	return tally{
		prefix: fmt.Sprintf("%s%d-%06x-", scaleSetJob, id, sum.Sum32()&0xffffff), like: like, site: site, strange: true,
		open: map[string]tallied{}, closed: map[string]time.Time{}, made: map[string]tallied{},
	}
}

func (t *tally) clone() tally {
	out := *t
	out.open, out.closed, out.made = maps.Clone(t.open), maps.Clone(t.closed), maps.Clone(t.made)

	return out
}

// begin starts a session.
func (t *tally) begin(session string, level statistics, now time.Time) {
	t.strange = t.strange && (t.session == "" || t.strangers(now))
	t.session, t.began, t.surplus = session, now, time.Time{}

	for key, entry := range t.open {
		entry.seen = time.Time{}
		t.open[key] = entry
	}

	t.observe(level, now)
}

// observe takes over statistics.
func (t *tally) observe(level statistics, now time.Time) { t.level, t.levelAt = level, now }

// strangers tells whether the ledger may still know jobs that the tally does not.
func (t *tally) strangers(now time.Time) bool { return t.strange && now.Sub(t.began) < strangersAfter }

// ingest takes in a message's updates and gives the jobs that changed, each once.
func (t *tally) ingest(updates []jobUpdate, now time.Time) []workload.Job {
	maps.DeleteFunc(t.closed, func(_ string, at time.Time) bool { return now.Sub(at) > closedFor })

	var out []workload.Job

	for _, n := range updates {
		if n.key() == "" {
			continue
		}

		if job, changed := t.take(n, now); changed {
			out = slices.DeleteFunc(out, func(other workload.Job) bool { return other.ID == job.ID })
			out = append(out, job)
		}
	}

	return out
}

// take takes in one update. What is late or known changes nothing.
func (t *tally) take(n jobUpdate, now time.Time) (workload.Job, bool) {
	entry, known := t.open[n.key()]
	if !known {
		entry.job.ID = t.id(n, now)
		if _, over := t.closed[entry.job.ID]; over {
			return workload.Job{}, false
		}

		t.orders++
		entry.order = t.orders
	}

	job, before := t.job(n, entry.job), entry.job
	entry.job, entry.seen = job, now

	if n.Kind == jobCompleted {
		delete(t.open, n.key())
		t.closed[job.ID] = now

		return job, true
	}

	if job.State == "" {
		return workload.Job{}, false
	}

	t.open[n.key()] = entry

	return job, !known || before.State != job.State
}

// id gives the id of an assignment: the same for all updates of it, and another one for the
// next assignment of the same job, since a job that is over never begins again.
func (t *tally) id(n jobUpdate, now time.Time) string {
	id := t.prefix + n.key()
	if n.Request > 0 {
		return id
	}

	if !n.AssignedAt.IsZero() {
		return id + "-" + strconv.FormatInt(n.AssignedAt.Unix(), 10)
	}

	if _, over := t.closed[id]; over && n.Kind == jobAssigned {
		return id + "-" + strconv.FormatInt(now.Unix(), 10)
	}

	return id
}

// job gives the job as the update has it.
func (t *tally) job(n jobUpdate, before workload.Job) workload.Job {
	out := *t.like.DeepCopy()
	if before.Platform != "" {
		out = *before.DeepCopy()
	}

	out.ID = before.ID
	out.Name, out.RunnerName = cmp.Or(n.Name, out.Name), cmp.Or(n.RunnerName, out.RunnerName)
	out.QueuedAt = cmp.Or(moment(n.QueuedAt), out.QueuedAt, moment(n.AssignedAt))

	if len(n.Labels) > 0 {
		out.Labels = slices.Clone(n.Labels)
	}

	if n.Owner != "" && n.Repository != "" {
		out.Repository = n.Owner + "/" + n.Repository
	}

	if path, _, ok := strings.Cut(n.WorkflowRef, "@"); ok {
		out.Workflow = path[strings.LastIndex(path, "/")+1:]
	}

	if n.RunID > 0 {
		out.RunID = strconv.FormatInt(n.RunID, 10)
		if out.Repository != "" {
			out.URL = t.site + "/" + out.Repository + "/actions/runs/" + out.RunID
		}
	}

	switch n.Kind {
	case jobAvailable, jobAssigned:
		if out.State == "" {
			out.State = v1alpha1.JobQueued
		}
	case jobStarted:
		out.State, out.StartedAt = v1alpha1.JobRunning, moment(n.StartedAt)
	case jobCompleted:
		out.State, out.Conclusion = v1alpha1.JobCompleted, conclusion(n.Result)
		out.StartedAt, out.CompletedAt = cmp.Or(moment(n.StartedAt), out.StartedAt), moment(n.FinishedAt)
	}

	return out
}

// conclusion translates the service's result into the word of GitHub's other answers.
func conclusion(result string) string {
	switch strings.ToLower(result) {
	case "succeeded":
		return "success"
	case "failed":
		return "failure"
	case "canceled":
		return "cancelled"
	default:
		return strings.ToLower(result)
	}
}

// moment gives a time, or nil for the zero time, which the service writes where it has none.
func moment(at lenientTime) *metav1.Time {
	if at.IsZero() {
		return nil
	}

	return &metav1.Time{Time: at.UTC()}
}

// settle brings names and level together and gives the jobs that changed. dry says that no
// message has come for a while.
func (t *tally) settle(dry bool, now time.Time) []workload.Job {
	out := t.settleNamed(dry, now)

	want := max(0, t.level.waiting()-len(t.named(v1alpha1.JobQueued)))
	for len(t.made) > want {
		out = append(out, t.unmake(now))
	}

	for dry && !t.strangers(now) && len(t.made) < want {
		out = append(out, t.make(now))
	}

	return out
}

// settleNamed is parts 1 and 2 of the rule.
func (t *tally) settleNamed(dry bool, now time.Time) []workload.Job {
	running, queued := t.named(v1alpha1.JobRunning), t.named(v1alpha1.JobQueued)
	over, ahead := len(running)-t.level.Running, len(queued)-t.level.waiting()

	if over <= 0 && ahead <= 0 {
		t.surplus = time.Time{}

		return nil
	}

	if t.surplus.IsZero() {
		t.surplus = now
	}

	sure := t.levelAt.Sub(t.surplus) >= surplusAfter

	var out []workload.Job

	for _, key := range t.eligible(running, over, dry, sure, now) {
		out = append(out, t.lose(key, now))
	}

	room := max(0, t.level.Running-len(t.named(v1alpha1.JobRunning)))

	for i, key := range t.eligible(queued, ahead, dry, sure, now) {
		if i < room {
			out = append(out, t.run(key))
		} else {
			out = append(out, t.lose(key, now))
		}
	}

	return out
}

// eligible gives at most count of the jobs, the oldest first: those that no message of this
// session spoke of, and where the statistics are sure, those that none spoke of lately.
func (t *tally) eligible(keys []string, count int, dry, sure bool, now time.Time) []string {
	var out []string

	for _, key := range keys {
		seen := t.open[key].seen
		if len(out) < count && (dry && seen.IsZero() || sure && now.Sub(seen) >= surplusAfter) {
			out = append(out, key)
		}
	}

	return out
}

// named gives the keys of the named jobs in a state, the oldest first.
func (t *tally) named(state v1alpha1.JobState) []string {
	var out []string

	for key, entry := range t.open {
		if entry.job.State == state {
			out = append(out, key)
		}
	}

	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(t.open[a].order, t.open[b].order) })

	return out
}

func (t *tally) lose(key string, now time.Time) workload.Job {
	job := over(t.open[key].job, now)
	delete(t.open, key)
	t.closed[job.ID] = now

	return job
}

func (t *tally) run(key string) workload.Job {
	entry := t.open[key]
	entry.job.State = v1alpha1.JobRunning
	t.open[key] = entry

	return entry.job
}

// make adds a stand-in for a job that nobody named.
func (t *tally) make(now time.Time) workload.Job {
	t.orders++

	job := *t.like.DeepCopy()
	job.ID = t.prefix + unnamed + "-" + short(t.session) + "-" + strconv.Itoa(t.orders)
	job.Name, job.State, job.QueuedAt = "a job that GitHub did not name", v1alpha1.JobQueued, &metav1.Time{Time: now.UTC()}
	job.Labels = []string{t.like.Queue}
	t.made[job.ID] = tallied{job: job, order: t.orders}

	return job
}

// unmake ends the newest stand-in.
func (t *tally) unmake(now time.Time) workload.Job {
	newest := tallied{order: -1}

	for _, entry := range t.made {
		if entry.order > newest.order {
			newest = entry
		}
	}

	delete(t.made, newest.job.ID)
	t.closed[newest.job.ID] = now

	return over(newest.job, now)
}

func over(job workload.Job, now time.Time) workload.Job {
	job.State, job.Conclusion, job.CompletedAt = v1alpha1.JobCompleted, conclusionLost, &metav1.Time{Time: now.UTC()}

	return job
}

func short(id string) string { return strings.ToLower(id[:min(len(id), 8)]) }

// find gives the present word on a job, for those who kept its id. Of a job that the tally
// does not know nothing is said as long as the level has running jobs that nobody named,
// for it may be one of them; otherwise it is over, or a stand-in stands for it.
func (t *tally) find(id string, now time.Time) (workload.Job, bool) {
	if entry, ok := t.made[id]; ok {
		return entry.job, true
	}

	for _, entry := range t.open {
		if entry.job.ID == id {
			return entry.job, true
		}
	}

	job := *t.like.DeepCopy()
	job.ID = id

	_, closed := t.closed[id]
	if !closed && (t.strangers(now) || t.level.Running > len(t.named(v1alpha1.JobRunning))) {
		return workload.Job{}, false
	}

	return over(job, now), true
}
