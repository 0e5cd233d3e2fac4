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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/kit/objectstore"
)

// pageSize bounds the jobs that one call brings.
const pageSize = 500

// source is where jobs are read.
type source struct {
	client client.Reader
	// namespace of the jobs; empty means all.
	namespace string
}

// connect finds the API server as kubectl does.
func connect(opts options) (*source, error) {
	cluster, err := opts.Connect(v1alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}

	out := &source{client: cluster.Client, namespace: cluster.Namespace}
	if opts.all {
		out.namespace = ""
	}

	return out, nil
}

// where names the namespace for people.
func (s *source) where() string {
	if s.namespace == "" {
		return "in any namespace"
	}

	return "in namespace " + s.namespace
}

// jobs reads all jobs: those that wait first, the oldest first; then those that run, and
// those that are over, the latest first.
func (s *source) jobs(ctx context.Context) ([]v1alpha1.RunnerJob, error) {
	var out []v1alpha1.RunnerJob

	for next := ""; ; {
		var page v1alpha1.RunnerJobList

		err := s.client.List(ctx, &page, client.InNamespace(s.namespace), client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return nil, fmt.Errorf("list jobs %s: %w", s.where(), err)
		}

		out = append(out, page.Items...)

		if next = page.Continue; next == "" {
			break
		}
	}

	Sort(out)

	return out, nil
}

// Sort puts jobs into the order of lists: those that wait first, the oldest first; then those
// that run, and those that are over, the latest first.
func Sort(jobs []v1alpha1.RunnerJob) {
	slices.SortStableFunc(jobs, func(a, b v1alpha1.RunnerJob) int {
		x, y := rank(string(a.Spec.State)), rank(string(b.Spec.State))
		age := born(&a).Compare(born(&b))

		if a.Spec.State == v1alpha1.JobCompleted {
			age = over(&b).Compare(over(&a))
		}

		return cmp.Or(cmp.Compare(x, y), age, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// over is when a job was over.
func over(job *v1alpha1.RunnerJob) time.Time {
	if job.Spec.CompletedAt != nil {
		return job.Spec.CompletedAt.Time
	}

	return born(job)
}

// born is when a job began to wait.
func born(job *v1alpha1.RunnerJob) time.Time {
	switch {
	case job.Spec.QueuedAt != nil:
		return job.Spec.QueuedAt.Time
	case job.Spec.ReceivedAt != nil:
		return job.Spec.ReceivedAt.Time
	default:
		return job.CreationTimestamp.Time
	}
}

// jobDetails is all that is known of one job.
type jobDetails struct {
	job *v1alpha1.RunnerJob
	// claim of its machine; nil if it has none, or it is gone.
	claim *v1alpha1.MachineClaim
	// coming are the machines of the job's pool that may yet take it.
	coming []v1alpha1.MachineClaim
	// kept are machines of the job's pool that failed and are there to be looked at.
	kept []v1alpha1.MachineClaim
	// log that was kept; nil if none was, and why if it can't be read.
	log   *v1alpha1.RunnerLog
	noLog string
	// logAt is where in an object store the log is; empty if it is in none.
	logAt string
}

// details finds a job and all about it.
func (s *source) details(ctx context.Context, id string) (*jobDetails, error) {
	all, err := s.jobs(ctx)
	if err != nil {
		return nil, err
	}

	job, err := find(all, id, s.where())
	if err != nil {
		return nil, err
	}

	return s.about(ctx, job, s.client)
}

// about finds all that is known of a job; logs reads its log.
func (s *source) about(ctx context.Context, job *v1alpha1.RunnerJob, logs client.Reader) (*jobDetails, error) {
	out := &jobDetails{job: job}

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
		case waits(job) && mayTake(claim, job.Status.Pool):
			out.coming = append(out.coming, *claim)
		case waits(job) && isKept(claim, job.Status.Pool):
			out.kept = append(out.kept, *claim)
		}
	}

	return out, readLog(ctx, logs, out)
}

// waits tells whether a job has no runner yet.
func waits(job *v1alpha1.RunnerJob) bool {
	return job.Spec.State == v1alpha1.JobQueued || job.Spec.State == v1alpha1.JobWaiting
}

// mayTake tells whether a claim's machine may yet take a job of the pool.
func mayTake(claim *v1alpha1.MachineClaim, pool string) bool {
	ref, times, info := claim.Spec.RunnerPoolRef, claim.Status.Times, claim.Status.BootstrapInfo

	return ref != nil && pool != "" && ref.Name == pool && claim.DeletionTimestamp.IsZero() && !claim.Spec.Standby &&
		(times == nil || times.JobStarted == nil && times.Ended == nil) && (info == nil || info.BoundJob == "")
}

// isKept tells whether a claim's machine, one of the pool's, failed and is kept.
func isKept(claim *v1alpha1.MachineClaim, pool string) bool {
	ref := claim.Spec.RunnerPoolRef

	return ref != nil && pool != "" && ref.Name == pool && claim.Status.KeptUntil != nil && claim.DeletionTimestamp.IsZero()
}

// readLog reads the log that was kept. That it can't be read is no reason not to tell the
// rest.
func readLog(ctx context.Context, from client.Reader, of *jobDetails) error {
	if of.job.Status.Logs == "" {
		return nil
	}

	var log v1alpha1.RunnerLog

	err := from.Get(ctx, client.ObjectKey{Namespace: of.job.Namespace, Name: of.job.Status.Logs}, &log)

	switch {
	case apierrors.IsNotFound(err):
		of.noLog = "RunnerLog " + of.job.Status.Logs + " is gone"
	case apierrors.IsForbidden(err):
		of.noLog = "you may not read RunnerLog " + of.job.Status.Logs
	case err != nil:
		return fmt.Errorf("read log %s: %w", of.job.Status.Logs, err)
	case log.Spec.Stored != nil:
		of.logAt = objectstore.URL(log.Spec.Stored.Bucket, log.Spec.Stored.Key)

		if log.Spec.Text, of.noLog = readStored(ctx, log.Spec.Stored, os.Getenv); of.noLog == "" {
			of.log = &log
		}
	default:
		of.log = &log
	}

	return nil
}

// find finds a job by its RunnerJob's name, its id or its address.
func find(jobs []v1alpha1.RunnerJob, id, where string) (*v1alpha1.RunnerJob, error) {
	id = strings.TrimSpace(id)
	address := plain(id)

	for _, is := range []func(*v1alpha1.RunnerJob) bool{
		func(j *v1alpha1.RunnerJob) bool { return j.Name == id || j.Namespace+"/"+j.Name == id },
		func(j *v1alpha1.RunnerJob) bool { return j.Spec.ID == id },
		func(j *v1alpha1.RunnerJob) bool { return address != "" && plain(j.Spec.URL) == address },
		// The address of a run leads to its jobs.
		func(j *v1alpha1.RunnerJob) bool {
			return address != "" && strings.HasPrefix(plain(j.Spec.URL), address+"/")
		},
	} {
		var found []*v1alpha1.RunnerJob

		for i := range jobs {
			if is(&jobs[i]) {
				found = append(found, &jobs[i])
			}
		}

		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return nil, fmt.Errorf("several jobs are %q: say which by name, with --namespace:\n%s", id, lines(found))
		}
	}

	if near := nearest(jobs, id); len(near) > 0 {
		return nil, fmt.Errorf("there is no job %q %s; near it are:\n%s", id, where, lines(near))
	}

	return nil, fmt.Errorf("there is no job %q %s: `hyperfleet jobs --all-namespaces` lists those that there are; "+
		"jobs that are over are kept for a time only (runners.jobRetention)", id, where)
}

// plain is an address without what does not say which job it is; empty if it is none.
func plain(address string) string {
	link, err := url.Parse(address)
	if err != nil || link.Host == "" {
		return ""
	}

	return strings.ToLower(link.Host) + strings.TrimRight(link.Path, "/")
}

// lines names jobs for people, at most a few.
func lines(jobs []*v1alpha1.RunnerJob) string {
	const most = 10

	out := make([]string, 0, len(jobs))
	for _, job := range jobs[:min(len(jobs), most)] {
		out = append(out, fmt.Sprintf("  %s/%s  %s  %s  %s",
			job.Namespace, job.Name, job.Spec.State, cli.Line(job.Spec.Repository), cli.Line(job.Spec.Name)))
	}

	return strings.Join(out, "\n")
}

// nearest gives the few jobs whose names or ids are nearest to what was asked for.
func nearest(jobs []v1alpha1.RunnerJob, id string) []*v1alpha1.RunnerJob {
	const (
		most = 5
		far  = 3
	)

	if i := strings.LastIndex(strings.TrimRight(id, "/"), "/"); i >= 0 {
		id = strings.TrimRight(id, "/")[i+1:]
	}

	type scored struct {
		job   *v1alpha1.RunnerJob
		score int
	}

	var near []scored

	for i := range jobs {
		job := &jobs[i]
		score := min(distance(id, job.Name), distance(id, job.Spec.ID))

		// A part of a name, or of what the job is called, is near too.
		if len(id) > 2 && (strings.Contains(job.Name, id) || strings.Contains(strings.ToLower(job.Spec.Name), strings.ToLower(id))) {
			score = min(score, far)
		}

		if score <= far && score < len(id) {
			near = append(near, scored{job, score})
		}
	}

	slices.SortStableFunc(near, func(a, b scored) int { return cmp.Compare(a.score, b.score) })

	out := make([]*v1alpha1.RunnerJob, 0, most)
	for _, n := range near[:min(len(near), most)] {
		out = append(out, n.job)
	}

	return out
}

// distance is how many letters have to be put in, taken out or changed to make b of a
// (Levenshtein).
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
