// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/crds"
	"github.com/hyperfleet/hyperfleet/runners/objectstore"
)

// pageSize is the maximum number of jobs that one list request returns.
const pageSize = 500

// source reads jobs and the objects that belong to them.
type source struct {
	client client.Reader
	// namespace of the jobs; if it is empty, jobs of all namespaces are read.
	namespace string
}

// connect connects to the API server in the same way as kubectl.
func connect(opts options) (*source, error) {
	cluster, err := opts.Connect(v1alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}

	out := &source{client: cluster.Client, namespace: cluster.Namespace}
	if opts.allNamespaces {
		out.namespace = ""
	}

	return out, nil
}

// formatScope describes the namespace in messages.
func (s *source) formatScope() string {
	if s.namespace == "" {
		return "in any namespace"
	}

	return "in namespace " + s.namespace
}

// listJobs returns all jobs in the order of Sort.
func (s *source) listJobs(ctx context.Context) ([]v1alpha1.RunnerJob, error) {
	var out []v1alpha1.RunnerJob

	for next := ""; ; {
		var page v1alpha1.RunnerJobList

		err := s.client.List(ctx, &page, client.InNamespace(s.namespace), client.Limit(pageSize), client.Continue(next))
		if meta.IsNoMatchError(err) {
			err = crds.ErrNotInstalled
		}

		if err != nil {
			return nil, fmt.Errorf("list jobs %s: %w", s.formatScope(), err)
		}

		out = append(out, page.Items...)

		if next = page.Continue; next == "" {
			break
		}
	}

	Sort(out)

	return out, nil
}

// Sort sorts jobs in the order of lists: queued jobs, jobs that the platform holds back, and running jobs,
// each with the oldest first; then completed jobs, with the last completed first.
func Sort(jobs []v1alpha1.RunnerJob) {
	slices.SortStableFunc(jobs, func(a, b v1alpha1.RunnerJob) int {
		x, y := stateRank(string(a.Spec.State)), stateRank(string(b.Spec.State))
		age := queuedAt(&a).Compare(queuedAt(&b))

		if a.Spec.State == v1alpha1.JobCompleted {
			age = completedAt(&b).Compare(completedAt(&a))
		}

		return cmp.Or(cmp.Compare(x, y), age, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// completedAt returns the time at which a job completed. If the platform did not report it, it returns
// queuedAt.
func completedAt(job *v1alpha1.RunnerJob) time.Time {
	if job.Spec.CompletedAt != nil {
		return job.Spec.CompletedAt.Time
	}

	return queuedAt(job)
}

// queuedAt returns the time at which a job began to wait, from the best source that is known.
func queuedAt(job *v1alpha1.RunnerJob) time.Time {
	switch {
	case job.Spec.QueuedAt != nil:
		return job.Spec.QueuedAt.Time
	case job.Spec.ReceivedAt != nil:
		return job.Spec.ReceivedAt.Time
	default:
		return job.CreationTimestamp.Time
	}
}

// jobObjects are the objects that belong to one job.
type jobObjects struct {
	job *v1alpha1.RunnerJob
	// claim of the job's machine; nil if the job has no machine, or if the claim was deleted.
	claim *v1alpha1.MachineClaim
	// candidates are the claims of machines in the job's pool that may still run the job.
	candidates []v1alpha1.MachineClaim
	// kept are the claims of failed machines in the job's pool that are kept for inspection.
	kept []v1alpha1.MachineClaim
	// log of the job; nil if none was kept or if it cannot be read. logProblem tells why it cannot be read.
	log        *v1alpha1.RunnerLog
	logProblem string
	// logURL is the URL of the log in an object store; empty if the log is not in a store.
	logURL string
}

// findObjects returns the job with the given ID and its objects.
func (s *source) findObjects(ctx context.Context, id string) (*jobObjects, error) {
	all, err := s.listJobs(ctx)
	if err != nil {
		return nil, err
	}

	job, err := findJob(all, id, s.formatScope())
	if err != nil {
		return nil, err
	}

	return s.loadObjects(ctx, job, s.client)
}

// loadObjects returns the objects that belong to a job. It reads the RunnerLog with the reader logs.
func (s *source) loadObjects(ctx context.Context, job *v1alpha1.RunnerJob, logs client.Reader) (*jobObjects, error) {
	out := &jobObjects{job: job}

	var claims v1alpha1.MachineClaimList
	if err := s.client.List(ctx, &claims, client.InNamespace(job.Namespace)); err != nil {
		return nil, fmt.Errorf("list machine claims in namespace %s: %w", job.Namespace, err)
	}

	for i := range claims.Items {
		claim := &claims.Items[i]
		info := claim.Status.BootstrapInfo

		switch {
		case job.Status.Claim != "" && claim.Name == job.Status.Claim, info != nil && info.BoundJob == job.Name && out.claim == nil:
			out.claim = claim
		case isWaiting(job) && canRunJob(claim, job.PoolName()):
			out.candidates = append(out.candidates, *claim)
		case isWaiting(job) && isKept(claim, job.PoolName()):
			out.kept = append(out.kept, *claim)
		}
	}

	return out, loadLog(ctx, logs, out)
}

// isWaiting reports whether a job has no runner yet.
func isWaiting(job *v1alpha1.RunnerJob) bool {
	return isWaitingState(job.Spec.State)
}

// canRunJob reports whether the machine of a claim belongs to the pool and may still run a job.
func canRunJob(claim *v1alpha1.MachineClaim, pool string) bool {
	times, info := claim.Status.Times, claim.Status.BootstrapInfo

	return pool != "" && claim.PoolName() == pool && claim.DeletionTimestamp.IsZero() && !claim.Spec.Standby &&
		(times == nil || times.JobStarted == nil && times.Ended == nil) && (info == nil || info.BoundJob == "")
}

// isKept reports whether the machine of a claim belongs to the pool, has failed, and is kept for inspection.
func isKept(claim *v1alpha1.MachineClaim, pool string) bool {
	return pool != "" && claim.PoolName() == pool && claim.Status.KeptUntil != nil && claim.DeletionTimestamp.IsZero()
}

// loadLog reads the RunnerLog of a job, and the log in an object store that the RunnerLog refers to. If the
// log does not exist, is forbidden, or cannot be read from the store, it records the reason and returns no
// error, so that the rest of the job can be shown.
func loadLog(ctx context.Context, reader client.Reader, objects *jobObjects) error {
	if objects.job.Status.Logs == "" {
		return nil
	}

	var log v1alpha1.RunnerLog

	err := reader.Get(ctx, client.ObjectKey{Namespace: objects.job.Namespace, Name: objects.job.Status.Logs}, &log)

	switch {
	case apierrors.IsNotFound(err):
		objects.logProblem = "RunnerLog " + objects.job.Status.Logs + " not found"
	case apierrors.IsForbidden(err):
		objects.logProblem = "no permission to read RunnerLog " + objects.job.Status.Logs
	case err != nil:
		return fmt.Errorf("read RunnerLog %s: %w", objects.job.Status.Logs, err)
	case log.Spec.Stored != nil:
		objects.logURL = objectstore.ObjectURL(log.Spec.Stored.Bucket, log.Spec.Stored.Key)

		if log.Spec.Text, objects.logProblem = readStoredLog(ctx, log.Spec.Stored, os.Getenv); objects.logProblem == "" {
			objects.log = &log
		}
	default:
		objects.log = &log
	}

	return nil
}

// findJob returns the job with the given RunnerJob name, ID or URL, in this order. The URL of a workflow run
// with one job selects that job. If no job matches, the error lists similar jobs. If several jobs match, the
// error lists them.
func findJob(jobs []v1alpha1.RunnerJob, id, scope string) (*v1alpha1.RunnerJob, error) {
	id = strings.TrimSpace(id)
	jobURL := normalizeURL(id)

	for _, matches := range []func(*v1alpha1.RunnerJob) bool{
		func(j *v1alpha1.RunnerJob) bool {
			return slices.Contains([]string{j.Name, j.Namespace + "/" + j.Name, objectName(j)}, id)
		},
		func(j *v1alpha1.RunnerJob) bool { return j.Spec.ID == id },
		func(j *v1alpha1.RunnerJob) bool { return jobURL != "" && normalizeURL(j.Spec.URL) == jobURL },
		// The URL of a workflow run is a prefix of the URLs of its jobs.
		func(j *v1alpha1.RunnerJob) bool {
			return jobURL != "" && strings.HasPrefix(normalizeURL(j.Spec.URL), jobURL+"/")
		},
	} {
		var matching []*v1alpha1.RunnerJob

		for i := range jobs {
			if matches(&jobs[i]) {
				matching = append(matching, &jobs[i])
			}
		}

		switch len(matching) {
		case 0:
		case 1:
			return matching[0], nil
		default:
			return nil, fmt.Errorf("several jobs match %q: give the RunnerJob name of one, with --namespace:\n%s",
				id, formatJobs(matching))
		}
	}

	if similar := findSimilar(jobs, id); len(similar) > 0 {
		return nil, fmt.Errorf("found no job %q %s; similar jobs are:\n%s", id, scope, formatJobs(similar))
	}

	return nil, fmt.Errorf("found no job %q %s: run `hyperfleet jobs --all-namespaces` to list all jobs; "+
		"the operator deletes completed jobs after runners.jobRetention", id, scope)
}

// normalizeURL returns the host, in lower case, and the path of a URL, without scheme, query and fragment. It
// returns "" if the text is not a URL with a host.
func normalizeURL(text string) string {
	link, err := url.Parse(text)
	if err != nil || link.Host == "" {
		return ""
	}

	return strings.ToLower(link.Host) + strings.TrimRight(link.Path, "/")
}

// formatJobs returns one line for each of the first 10 jobs.
func formatJobs(jobs []*v1alpha1.RunnerJob) string {
	const maxNames = 10

	out := make([]string, 0, len(jobs))
	for _, job := range jobs[:min(len(jobs), maxNames)] {
		out = append(out, fmt.Sprintf("  %s/%s  %s  %s  %s",
			job.Namespace, job.Name, job.Spec.State, cli.SanitizeLine(job.Spec.Repository), cli.SanitizeLine(job.Spec.Name)))
	}

	return strings.Join(out, "\n")
}

// findSimilar returns at most 5 jobs whose names or IDs are most similar to the given ID, the most similar first.
func findSimilar(jobs []v1alpha1.RunnerJob, id string) []*v1alpha1.RunnerJob {
	const (
		limit       = 5
		maxDistance = 3
	)

	// The ID of a URL is its last path segment.
	if i := strings.LastIndex(strings.TrimRight(id, "/"), "/"); i >= 0 {
		id = strings.TrimRight(id, "/")[i+1:]
	}

	type scored struct {
		job   *v1alpha1.RunnerJob
		score int // the edit distance, so the lowest score is the most similar
	}

	var similar []scored

	for i := range jobs {
		job := &jobs[i]
		score := min(distance(id, job.Name), distance(id, job.Spec.ID))

		// A job is also similar if the ID is a part of its RunnerJob name or of its name at the CI platform.
		if len(id) > 2 && (strings.Contains(job.Name, id) || strings.Contains(strings.ToLower(job.Spec.Name), strings.ToLower(id))) {
			score = min(score, maxDistance)
		}

		if score <= maxDistance && score < len(id) {
			similar = append(similar, scored{job, score})
		}
	}

	slices.SortStableFunc(similar, func(a, b scored) int { return cmp.Compare(a.score, b.score) })

	out := make([]*v1alpha1.RunnerJob, 0, limit)
	for _, s := range similar[:min(len(similar), limit)] {
		out = append(out, s.job)
	}

	return out
}

// distance returns the Levenshtein distance: the number of bytes to insert, delete or replace to turn a into
// b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		last := row[0]
		row[0] = i + 1

		for j := range len(b) {
			change := last
			if a[i] != b[j] {
				change++
			}

			last = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}

	return row[len(b)]
}
