// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons of errors of runner scale sets.
const (
	ReasonScaleSetInUse = "GitHubScaleSetInUse"
	ReasonScaleSet      = "GitHubScaleSetInvalid"
)

// scaleSetJobPrefix is the prefix of the ids of a scale set's jobs. The ids of other jobs are
// numbers.
const scaleSetJobPrefix = "ss-"

// scaleSetProvider implements workload.Provider for a scope of GitHub whose runners belong to a
// runner scale set. The set creates the runners' configurations, and its message queue reports its
// jobs, so GitHub does not need to reach the operator.
type scaleSetProvider struct {
	*provider

	name, runnerGroup string
	service           *serviceClient

	mu sync.Mutex
	// set is the scale set. It is nil until ensureSet has found or created the set.
	set *scaleSet
	// jobs are the set's known jobs. isLive means that a session keeps them up to date.
	jobs   *tally
	isLive bool
}

var (
	_ workload.Provider = (*scaleSetProvider)(nil)
	_ workload.Streamer = (*scaleSetProvider)(nil)
)

// openProvider creates the provider that the configuration needs.
func openProvider(config Config, clk clock.Clock) (workload.Provider, error) {
	base, err := newProvider(config, clk)
	if err != nil {
		return nil, err
	}

	if config.ScaleSet == "" {
		return base, nil
	}

	return &scaleSetProvider{
		provider: base, name: config.ScaleSet, runnerGroup: config.RunnerGroup, service: newService(base, config),
	}, nil
}

// Validate also resolves the runner group at the service for scale sets. It does not create the
// set. The first call that needs the set creates it.
func (s *scaleSetProvider) Validate(ctx context.Context) error {
	if err := s.provider.Validate(ctx); err != nil {
		return err
	}

	_, err := s.service.resolveGroup(ctx, s.runnerGroup)

	return err
}

// IssueCredential creates a JIT configuration of the set. The runner has the set's labels and
// group.
func (s *scaleSetProvider) IssueCredential(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	isJIT, err := isJITRegistration(req.Registration)
	if err != nil {
		return workload.Credential{}, err
	}

	if !isJIT {
		return workload.Credential{}, workload.NewRejected(ReasonScaleSet, fmt.Sprintf(
			"runners of scale set %s cannot register with a token: set registration to jit in bootstrap.config.github of the template",
			s.name))
	}

	if err := validateRequest(req); err != nil {
		return workload.Credential{}, err
	}

	out, isNameTaken, err := s.createSetConfig(ctx, req)
	if err != nil || !isNameTaken {
		return out, err
	}

	// An earlier attempt may have left the runner of that name.
	if err := s.removeRemnant(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	out, isNameTaken, err = s.createSetConfig(ctx, req)
	if err == nil && isNameTaken {
		err = s.newConflictError(req.Name)
	}

	return out, err
}

// createSetConfig creates the configuration of one runner, and reports whether another runner has
// the same name. If the set was deleted, it creates the set again, once.
func (s *scaleSetProvider) createSetConfig(
	ctx context.Context, req workload.RunnerRequest,
) (credential workload.Credential, isNameTaken bool, err error) {
	for attempt := 1; ; attempt++ {
		set, err := s.ensureSet(ctx)
		if err != nil {
			return workload.Credential{}, false, err
		}

		out, err := s.service.createConfig(ctx, set.ID, req)

		switch serviceErr := asServiceError(err); {
		case err == nil:
			return out, false, nil
		case serviceErr.hasKind("AgentExistsException"):
			return workload.Credential{}, true, nil
		case serviceErr.hasStatus(http.StatusNotFound) && attempt == 1:
			s.forgetSet()
		default:
			return workload.Credential{}, false, s.service.explain("create runner "+req.Name, err)
		}
	}
}

// ensureSet returns the set, and creates it if it does not exist.
func (s *scaleSetProvider) ensureSet(ctx context.Context) (scaleSet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.set != nil {
		return *s.set, nil
	}

	group, err := s.service.resolveGroup(ctx, s.runnerGroup)
	if err != nil {
		return scaleSet{}, err
	}

	set, err := s.service.ensureSet(ctx, group, s.name)
	if err != nil {
		return scaleSet{}, err
	}

	s.set = &set

	created := s.buildTally(set)
	if s.jobs == nil || s.jobs.prefix != created.prefix {
		s.jobs = &created
	}

	return set, nil
}

// forgetSet makes the next call find the set again.
func (s *scaleSetProvider) forgetSet() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.set = nil
}

func (s *scaleSetProvider) buildTally(set scaleSet) tally {
	jobTemplate := workload.Job{Platform: v1alpha1.WorkloadGitHubActions, Queue: s.name}

	switch runnerScope := s.urls.scope; {
	case runnerScope.repo != "":
		jobTemplate.Repository = runnerScope.owner + "/" + runnerScope.repo
	case runnerScope.owner != "":
		jobTemplate.Organization = runnerScope.owner
	}

	return newTally(set.ID, s.urls.runner, jobTemplate)
}

// GetJob returns the state of a set's job from the set's message queue, because other APIs of
// GitHub do not accept the ids of these jobs.
func (s *scaleSetProvider) GetJob(ctx context.Context, repo, id string) (workload.Job, error) {
	if !strings.HasPrefix(id, scaleSetJobPrefix) {
		return s.provider.GetJob(ctx, repo, id)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.jobs == nil || !s.isLive {
		return workload.Job{}, fmt.Errorf("get job %s: no session of scale set %s is open", id, s.name)
	}

	if !strings.HasPrefix(id, s.jobs.prefix) { // the job belongs to a set that was deleted
		job := workload.Job{Platform: v1alpha1.WorkloadGitHubActions, ID: id, Repository: repo, Queue: s.name}

		return completeJob(job, s.clock.Now()), nil
	}

	job, ok := s.jobs.findJob(id, s.clock.Now())
	if !ok {
		return workload.Job{}, fmt.Errorf(
			"get job %s: it may be one of the jobs that scale set %s runs without reporting their ids", id, s.name)
	}

	if job.Repository == "" {
		job.Repository = repo
	}

	return job, nil
}

// newCredential converts the service's response.
func newCredential(config jitConfiguration) workload.Credential {
	out := workload.Credential{JITConfig: config.Encoded}
	if config.Runner.ID > 0 {
		out.RunnerID = strconv.FormatInt(config.Runner.ID, 10)
	}

	return out
}
