// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

const (
	owner     = "octo-org"
	hookValue = "a webhook secret"
	bootTime  = 20 * time.Second
)

// platform is GitHub without its REST API: it sends webhooks, and hands jobs to runners.
type platform struct {
	github.Platform

	t testing.TB
	// duration is how long a job runs.
	duration time.Duration
	// operator serves webhooks and reports.
	operator http.Handler

	mu   sync.Mutex
	jobs []*job
	// queued are the jobs without a runner, the oldest first, by the label of their pool.
	queued map[string][]*job
	// refused is the number of requests that the operator did not accept.
	refused int
}

// job is a job of the platform.
type job struct {
	id                         int
	label, runner              string
	queuedAt, startedAt, ended time.Time
}

var _ workload.Platform = (*platform)(nil)

// Open returns the provider. Its credential is the name of the runner.
func (p *platform) Open(workload.Config) (workload.Provider, error) { return provider{p}, nil }

type provider struct{ platform *platform }

func (provider) Validate(context.Context) error { return nil }

func (provider) IssueCredential(_ context.Context, request workload.RunnerRequest) (workload.Credential, error) {
	own := slices.IndexFunc(request.Labels, func(label string) bool { return strings.HasPrefix(label, poolPrefix) })

	return workload.Credential{JITConfig: request.Name + " " + request.Labels[own], RunnerID: request.Name}, nil
}

func (provider) FindRunner(_ context.Context, name string, _ time.Duration) (workload.Runner, error) {
	return workload.Runner{}, &workload.Error{Kind: workload.NotFound, Reason: "NotFound", Message: "there is no runner " + name}
}

func (provider) ListRunners(context.Context, string) ([]workload.Runner, error) { return nil, nil }

func (provider) Deregister(context.Context, string) error { return nil }

// GetJob returns a job that has waited or run for so long that the operator requests its state.
func (p provider) GetJob(_ context.Context, _, id string) (workload.Job, error) {
	p.platform.mu.Lock()
	defer p.platform.mu.Unlock()

	index := slices.IndexFunc(p.platform.jobs, func(each *job) bool { return strconv.Itoa(each.id) == id })
	if index < 0 {
		return workload.Job{}, &workload.Error{Kind: workload.NotFound, Reason: "NotFound", Message: "there is no job " + id}
	}

	found := p.platform.jobs[index]
	out := workload.Job{
		Platform: v1alpha1.WorkloadGitHubActions, ID: id, Repository: owner + "/" + found.label, RunnerName: found.runner,
		Labels: []string{"self-hosted", found.label}, State: v1alpha1.JobQueued, QueuedAt: toTime(found.queuedAt),
	}

	if !found.startedAt.IsZero() {
		out.State, out.StartedAt = v1alpha1.JobRunning, toTime(found.startedAt)
	}

	if !found.ended.IsZero() {
		out.State, out.Conclusion, out.CompletedAt = v1alpha1.JobCompleted, "success", toTime(found.ended)
	}

	return out, nil
}

func toTime(at time.Time) *metav1.Time { return &metav1.Time{Time: at} }

// queue queues a job for the pool with a label.
func (p *platform) queue(label string) {
	p.mu.Lock()
	added := &job{id: len(p.jobs) + 1, label: label, queuedAt: time.Now()}
	p.jobs = append(p.jobs, added)
	p.queued[label] = append(p.queued[label], added)
	p.mu.Unlock()

	p.sendWebhook(added, "queued")
}

// take gives a runner its job. It returns nil if none is queued.
func (p *platform) take(runner, label string) *job {
	p.mu.Lock()
	defer p.mu.Unlock()

	if len(p.queued[label]) == 0 {
		return nil
	}

	out := p.queued[label][0]
	p.queued[label] = p.queued[label][1:]
	out.runner, out.startedAt = runner, time.Now()

	return out
}

// boot is the guest of a machine: it boots, runs one job, and reports.
func (p *platform) boot(ctx context.Context, seed hypervisor.Seed) {
	if !sleep(ctx, bootTime) {
		return
	}

	config, err := fleet.ReadGuestConfig(map[string][]byte{"user-data": seed.UserData})
	if err != nil {
		p.t.Error(err)

		return
	}

	report := func(phase guest.Phase, reason string) {
		p.post(config.Report.URL, guest.Report{Phase: phase, Reason: reason, Time: time.Now()}, func(header http.Header, _ []byte) {
			header.Set("Authorization", "Bearer "+config.Report.Token)
		})
	}

	runner, label, _ := strings.Cut(config.JITConfig, " ")

	report(guest.PhaseStarted, "")
	report(guest.PhaseListening, "")

	taken := p.take(runner, label)
	for ; taken == nil; taken = p.take(runner, label) {
		if !sleep(ctx, time.Second) { // the operator deletes machines that nobody needs
			return
		}
	}

	p.sendWebhook(taken, "in_progress")
	report(guest.PhaseRunning, "")

	if !sleep(ctx, p.duration) {
		return
	}

	p.mu.Lock()
	taken.ended = time.Now()
	p.mu.Unlock()

	p.sendWebhook(taken, "completed")
	report(guest.PhaseFinished, guest.ReasonJobDone)
	sleep(ctx, time.Second) // the machine powers off
}

// sleep returns false if the machine was stopped meanwhile.
func sleep(ctx context.Context, duration time.Duration) bool {
	select {
	case <-time.After(duration):
		return true
	case <-ctx.Done():
		return false
	}
}

// sendWebhook sends the state of a job.
func (p *platform) sendWebhook(of *job, status string) {
	p.mu.Lock()
	body := map[string]any{
		"id": of.id, "run_id": of.id, "name": "test", "workflow_name": "ci", "status": status,
		"labels": []string{"self-hosted", of.label}, "runner_name": of.runner, "created_at": of.queuedAt.UTC().Format(time.RFC3339),
		"html_url": "https://github.com/" + owner + "/" + of.label + "/actions/runs/" + strconv.Itoa(of.id),
	}

	if !of.startedAt.IsZero() {
		body["started_at"] = of.startedAt.UTC().Format(time.RFC3339)
	}

	if status == "completed" {
		body["conclusion"], body["completed_at"] = "success", of.ended.UTC().Format(time.RFC3339)
	}
	p.mu.Unlock()

	p.post("/webhooks/github", map[string]any{
		"action": status, "workflow_job": body, "repository": map[string]string{"full_name": owner + "/" + of.label},
		"organization": map[string]string{"login": owner},
	}, func(header http.Header, text []byte) {
		header.Set(github.HeaderEvent, "workflow_job")
		header.Set(github.HeaderSignature, "sha256="+hex.EncodeToString(github.Sign(text, []byte(hookValue))))
	})
}

// post sends a request to the operator until it is accepted, as the bootstrap service does.
func (p *platform) post(url string, body any, sign func(http.Header, []byte)) {
	text, err := json.Marshal(body)
	if err != nil {
		p.t.Error(err)

		return
	}

	for wait := time.Second; wait < time.Minute; wait *= 2 {
		request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(string(text)))
		request.Header.Set("Content-Type", "application/json")
		sign(request.Header, text)

		answer := httptest.NewRecorder()
		p.operator.ServeHTTP(answer, request)

		if answer.Code < http.StatusMultipleChoices {
			return
		}

		p.mu.Lock()
		p.refused++
		p.mu.Unlock()

		if answer.Code == http.StatusUnauthorized || answer.Code == http.StatusNotFound {
			p.t.Error(fmt.Sprint(url, " ", answer.Code, " ", answer.Body))

			return
		}

		time.Sleep(wait)
	}
}
