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
	// surplusGracePeriod is how long the statistics must count fewer jobs than messages named
	// before the named jobs are closed. Statistics can lag behind, so two statistics that are this
	// far apart must agree.
	surplusGracePeriod = 10 * time.Minute
	// unknownJobsGracePeriod is how long a new tally waits before it adds placeholders for unnamed
	// jobs, because the RunnerJobs of an earlier process may already count these jobs.
	unknownJobsGracePeriod = time.Minute
	// closedRetention is how long a late update of a closed job is recognized.
	closedRetention = time.Hour

	// conclusionLost is the conclusion of a job that no longer exists, and of a placeholder that is
	// no longer needed.
	conclusionLost = "lost"
	placeholderID  = "unknown"
)

// Kinds of updates in a scale set's messages.
const (
	jobAvailable = "JobAvailable"
	jobAssigned  = "JobAssigned"
	jobStarted   = "JobStarted"
	jobCompleted = "JobCompleted"
)

// statistics are a scale set's own job counts. Assigned jobs wait for a runner of the set or run on
// one. Available jobs are offered to any set that acquires them.
type statistics struct {
	Available int `json:"totalAvailableJobs"`
	Assigned  int `json:"totalAssignedJobs"`
	Running   int `json:"totalRunningJobs"`
}

func (s statistics) waiting() int { return max(0, s.Assigned-s.Running) }

// jobUpdate is a message's update of one job. Some servers give each assignment of a job its own
// request id. Others send no request id, and assignments then differ only in their time.
type jobUpdate struct {
	Kind        string      `json:"messageType"`
	RequestID   int64       `json:"runnerRequestId"`
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

// lenientTime is a time that can be missing or invalid and is zero then. Servers use the year 1 for
// a missing time.
type lenientTime struct{ time.Time }

// UnmarshalJSON decodes a time. It leaves the time zero if the text is invalid or if it is the zero time of the
// service, 0001-01-01. It never returns an error, so that an invalid time does not lose a message.
func (t *lenientTime) UnmarshalJSON(text []byte) error {
	if parsed, err := time.Parse(time.RFC3339Nano, strings.Trim(string(text), `"`)); err == nil && parsed.Year() > 1 {
		t.Time = parsed
	}

	return nil
}

// key returns a key that is unique among the open jobs.
func (n jobUpdate) key() string {
	if n.RequestID > 0 {
		return strconv.FormatInt(n.RequestID, 10)
	}

	return strings.ToLower(n.JobID)
}

// tallyEntry is one open job.
type tallyEntry struct {
	job workload.Job
	// lastSeen is when a message of the current session last updated the job. It is zero if none
	// did.
	lastSeen time.Time
	// order is the position of the job in the order of first updates.
	order int
}

// tally contains what is known about a scale set's jobs. Its methods only change the tally itself.
// clone copies it.
//
// Messages name individual jobs. A job is named if a message has named it. Statistics are the authoritative
// counts. Messages can be lost with their session, arrive twice or arrive late. Therefore reconcile compares
// named jobs and statistics after each message, and when no message has arrived for quietPeriod:
//
//  1. If more named jobs run than the statistics count, the oldest of them are closed.
//  2. If more named jobs wait than the statistics count, the oldest of them are marked as running,
//     as long as the statistics count running jobs that are not named. The others are closed.
//  3. If fewer jobs wait than the statistics count, placeholders are added, so that machines are
//     created for the unnamed jobs. Placeholders are added only when no pending message can name the
//     jobs. A placeholder is closed as soon as the statistics no longer count its job.
//
// So the number of waiting jobs finally equals the count in the statistics. Rules 1 and 2 do not
// apply to jobs that a message of the current session updated, until the statistics have
// contradicted them for surplusGracePeriod.
type tally struct {
	// prefix is the prefix of the ids of this set's jobs.
	prefix string
	// jobTemplate contains the fields that all jobs of the set have in common.
	jobTemplate workload.Job
	// webURL is the base URL of the web pages of runs, for example https://github.com.
	webURL string

	open         map[string]tallyEntry // jobs that messages have named and that are not completed, by key
	closed       map[string]time.Time  // when jobs were closed, by id
	placeholders map[string]tallyEntry // queued jobs that only the statistics count, by id

	session      string
	sessionStart time.Time
	// isFirstSession is true in the tally's first session, in which RunnerJobs of an earlier process may be
	// unknown. begin says when a later session still counts as the first.
	isFirstSession bool

	statistics   statistics
	statisticsAt time.Time
	// surplusSince is since when the tally has had more named jobs than the statistics count. It is zero if
	// there is no surplus.
	surplusSince time.Time
	lastOrder    int
}

// newTally returns the tally of the scale set with that id. The prefix of its jobs' ids contains a
// hash of the runners' URL, because scale sets of different scopes can have the same id.
func newTally(id int64, url string, jobTemplate workload.Job) tally {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(strings.ToLower(url)))

	webURL := url
	if scheme, rest, ok := strings.Cut(url, "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		webURL = scheme + "://" + host
	}

	return tally{
		prefix:      fmt.Sprintf("%s%d-%06x-", scaleSetJobPrefix, id, hash.Sum32()&0xffffff),
		jobTemplate: jobTemplate, webURL: webURL, isFirstSession: true,
		open: map[string]tallyEntry{}, closed: map[string]time.Time{}, placeholders: map[string]tallyEntry{},
	}
}

func (t *tally) clone() tally {
	out := *t
	out.open, out.closed, out.placeholders = maps.Clone(t.open), maps.Clone(t.closed), maps.Clone(t.placeholders)

	return out
}

// begin resets what the tally knows from the previous session, when a new session starts. Open jobs stay, but
// no message of the new session has updated them. A session that starts while mayMissJobs is
// true still counts as the first.
func (t *tally) begin(session string, current statistics, now time.Time) {
	t.isFirstSession = t.isFirstSession && (t.session == "" || t.mayMissJobs(now))
	t.session, t.sessionStart, t.surplusSince = session, now, time.Time{}

	for key, entry := range t.open {
		entry.lastSeen = time.Time{}
		t.open[key] = entry
	}

	t.observe(current, now)
}

// observe stores the current statistics.
func (t *tally) observe(current statistics, now time.Time) {
	t.statistics, t.statisticsAt = current, now
}

// mayMissJobs reports whether RunnerJobs of an earlier process can exist that the tally does not contain
// yet. This is possible until unknownJobsGracePeriod after the start of a session that counts as the first.
func (t *tally) mayMissJobs(now time.Time) bool {
	return t.isFirstSession && now.Sub(t.sessionStart) < unknownJobsGracePeriod
}

// applyUpdates applies a message's updates and returns the changed jobs. It returns each job once, in its
// last state.
func (t *tally) applyUpdates(updates []jobUpdate, now time.Time) []workload.Job {
	maps.DeleteFunc(t.closed, func(_ string, at time.Time) bool { return now.Sub(at) > closedRetention })

	var out []workload.Job

	for _, update := range updates {
		if update.key() == "" {
			continue
		}

		if job, hasChanged := t.applyUpdate(update, now); hasChanged {
			out = slices.DeleteFunc(out, func(previous workload.Job) bool { return previous.ID == job.ID })
			out = append(out, job)
		}
	}

	return out
}

// applyUpdate applies one update. Late and repeated updates change nothing.
func (t *tally) applyUpdate(update jobUpdate, now time.Time) (job workload.Job, hasChanged bool) {
	entry, isKnown := t.open[update.key()]
	if !isKnown {
		entry.job.ID = t.assignmentID(update, now)
		if _, isClosed := t.closed[entry.job.ID]; isClosed {
			return workload.Job{}, false
		}

		t.lastOrder++
		entry.order = t.lastOrder
	}

	job, previous := t.mergeJob(update, entry.job), entry.job
	entry.job, entry.lastSeen = job, now

	if update.Kind == jobCompleted {
		delete(t.open, update.key())
		t.closed[job.ID] = now

		return job, true
	}

	if job.State == "" {
		return workload.Job{}, false
	}

	t.open[update.key()] = entry

	return job, !isKnown || previous.State != job.State
}

// assignmentID returns the id of an assignment. All updates of an assignment have the same id. The
// next assignment of the same job has another id, because a completed RunnerJob cannot start again.
func (t *tally) assignmentID(update jobUpdate, now time.Time) string {
	id := t.prefix + update.key()
	if update.RequestID > 0 {
		return id
	}

	if !update.AssignedAt.IsZero() {
		return id + "-" + strconv.FormatInt(update.AssignedAt.Unix(), 10)
	}

	if _, isClosed := t.closed[id]; isClosed && update.Kind == jobAssigned {
		return id + "-" + strconv.FormatInt(now.Unix(), 10)
	}

	return id
}

// mergeJob returns the previous job with the values of the update.
func (t *tally) mergeJob(update jobUpdate, previous workload.Job) workload.Job {
	out := *t.jobTemplate.DeepCopy()
	if previous.Platform != "" {
		out = *previous.DeepCopy()
	}

	out.ID = previous.ID
	out.Name, out.RunnerName = cmp.Or(update.Name, out.Name), cmp.Or(update.RunnerName, out.RunnerName)
	out.QueuedAt = cmp.Or(toMetaTime(update.QueuedAt), out.QueuedAt, toMetaTime(update.AssignedAt))

	if len(update.Labels) > 0 {
		out.Labels = slices.Clone(update.Labels)
	}

	if update.Owner != "" && update.Repository != "" {
		out.Repository = update.Owner + "/" + update.Repository
	}

	if path, _, ok := strings.Cut(update.WorkflowRef, "@"); ok {
		out.Workflow = path[strings.LastIndex(path, "/")+1:]
	}

	if update.RunID > 0 {
		out.RunID = strconv.FormatInt(update.RunID, 10)
		if out.Repository != "" {
			out.URL = t.webURL + "/" + out.Repository + "/actions/runs/" + out.RunID
		}
	}

	switch update.Kind {
	case jobAvailable, jobAssigned:
		if out.State == "" {
			out.State = v1alpha1.JobQueued
		}
	case jobStarted:
		out.State, out.StartedAt = v1alpha1.JobRunning, toMetaTime(update.StartedAt)
	case jobCompleted:
		out.State, out.Conclusion = v1alpha1.JobCompleted, convertConclusion(update.Result)
		out.StartedAt, out.CompletedAt = cmp.Or(toMetaTime(update.StartedAt), out.StartedAt), toMetaTime(update.FinishedAt)
	}

	return out
}

// convertConclusion converts the service's result to the conclusions of GitHub's other APIs.
func convertConclusion(result string) string {
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

// toMetaTime returns a time, or nil for the zero time.
func toMetaTime(t lenientTime) *metav1.Time {
	if t.IsZero() {
		return nil
	}

	return &metav1.Time{Time: t.UTC()}
}

// reconcile compares the named jobs with the statistics and returns the jobs that changed. isQuiet
// means that no message has arrived for quietPeriod.
func (t *tally) reconcile(isQuiet bool, now time.Time) []workload.Job {
	out := t.reconcileNamed(isQuiet, now)

	missing := max(0, t.statistics.waiting()-len(t.listNamed(v1alpha1.JobQueued)))
	for len(t.placeholders) > missing {
		out = append(out, t.closePlaceholder(now))
	}

	for isQuiet && !t.mayMissJobs(now) && len(t.placeholders) < missing {
		out = append(out, t.addPlaceholder(now))
	}

	return out
}

// reconcileNamed applies rules 1 and 2 of tally: it closes named jobs that the statistics no longer count,
// and marks queued jobs as running if the statistics count more running jobs than are named.
func (t *tally) reconcileNamed(isQuiet bool, now time.Time) []workload.Job {
	running, queued := t.listNamed(v1alpha1.JobRunning), t.listNamed(v1alpha1.JobQueued)
	surplusRunning, surplusQueued := len(running)-t.statistics.Running, len(queued)-t.statistics.waiting()

	if surplusRunning <= 0 && surplusQueued <= 0 {
		t.surplusSince = time.Time{}

		return nil
	}

	if t.surplusSince.IsZero() {
		t.surplusSince = now
	}

	isSurplusConfirmed := t.statisticsAt.Sub(t.surplusSince) >= surplusGracePeriod

	var out []workload.Job

	for _, key := range t.selectEligible(running, surplusRunning, isQuiet, isSurplusConfirmed, now) {
		out = append(out, t.closeJob(key, now))
	}

	unnamedRunning := max(0, t.statistics.Running-len(t.listNamed(v1alpha1.JobRunning)))

	for i, key := range t.selectEligible(queued, surplusQueued, isQuiet, isSurplusConfirmed, now) {
		if i < unnamedRunning {
			out = append(out, t.markRunning(key))
		} else {
			out = append(out, t.closeJob(key, now))
		}
	}

	return out
}

// selectEligible returns at most count of the surplus jobs, oldest first. If no message is pending, a job is
// eligible if no message of this session updated it. If the surplus is confirmed, a job is eligible if no message
// updated it within surplusGracePeriod.
func (t *tally) selectEligible(keys []string, count int, isQuiet, isSurplusConfirmed bool, now time.Time) []string {
	var out []string

	for _, key := range keys {
		seen := t.open[key].lastSeen
		if len(out) < count && (isQuiet && seen.IsZero() || isSurplusConfirmed && now.Sub(seen) >= surplusGracePeriod) {
			out = append(out, key)
		}
	}

	return out
}

// listNamed returns the keys of the named jobs in a state, oldest first.
func (t *tally) listNamed(state v1alpha1.JobState) []string {
	var out []string

	for key, entry := range t.open {
		if entry.job.State == state {
			out = append(out, key)
		}
	}

	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(t.open[a].order, t.open[b].order) })

	return out
}

func (t *tally) closeJob(key string, now time.Time) workload.Job {
	job := completeJob(t.open[key].job, now)
	delete(t.open, key)
	t.closed[job.ID] = now

	return job
}

func (t *tally) markRunning(key string) workload.Job {
	entry := t.open[key]
	entry.job.State = v1alpha1.JobRunning
	t.open[key] = entry

	return entry.job
}

// addPlaceholder adds a placeholder for a job that no message named.
func (t *tally) addPlaceholder(now time.Time) workload.Job {
	t.lastOrder++

	job := *t.jobTemplate.DeepCopy()
	job.ID = t.prefix + placeholderID + "-" + shortenID(t.session) + "-" + strconv.Itoa(t.lastOrder)
	job.Name, job.State, job.QueuedAt = "a job that GitHub did not name", v1alpha1.JobQueued, &metav1.Time{Time: now.UTC()}
	job.Labels = []string{t.jobTemplate.Queue}
	t.placeholders[job.ID] = tallyEntry{job: job, order: t.lastOrder}

	return job
}

// closePlaceholder closes the newest placeholder. The tally must have at least one.
func (t *tally) closePlaceholder(now time.Time) workload.Job {
	newest := tallyEntry{order: -1}

	for _, entry := range t.placeholders {
		if entry.order > newest.order {
			newest = entry
		}
	}

	delete(t.placeholders, newest.job.ID)
	t.closed[newest.job.ID] = now

	return completeJob(newest.job, now)
}

func completeJob(job workload.Job, now time.Time) workload.Job {
	job.State, job.Conclusion, job.CompletedAt = v1alpha1.JobCompleted, conclusionLost, &metav1.Time{Time: now.UTC()}

	return job
}

func shortenID(id string) string { return strings.ToLower(id[:min(len(id), 8)]) }

// findJob returns the current state of the job with an id that a caller stored. If the tally does
// not contain the job and the statistics count running jobs that no message named, findJob returns
// false, because the job may be one of them. Otherwise the job is completed, or a placeholder
// represents it.
func (t *tally) findJob(id string, now time.Time) (workload.Job, bool) {
	if entry, ok := t.placeholders[id]; ok {
		return entry.job, true
	}

	for _, entry := range t.open {
		if entry.job.ID == id {
			return entry.job, true
		}
	}

	job := *t.jobTemplate.DeepCopy()
	job.ID = id

	_, isClosed := t.closed[id]
	if !isClosed && (t.mayMissJobs(now) || t.statistics.Running > len(t.listNamed(v1alpha1.JobRunning))) {
		return workload.Job{}, false
	}

	return completeJob(job, now), true
}
