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

// scaleSetJob is what the ids of a scale set's jobs begin with. Ids of other jobs are
// numbers.
const scaleSetJob = "ss-"

// scaled is a scope of GitHub whose runners belong to a runner scale set: their
// configurations are made by the set, and the set's own queue tells of its jobs, so that
// nothing has to be reachable for GitHub.
type scaled struct {
	*provider

	name, runnerGroup string
	service           *service

	mu sync.Mutex
	// set as of the last look; nil: to be looked for.
	set *scaleSet
	// known jobs, and whether a session keeps them up to date.
	known *tally
	live  bool
}

var (
	_ workload.Provider = (*scaled)(nil)
	_ workload.Streamer = (*scaled)(nil)
)

// open makes the provider that the configuration asks for.
func open(config Config, clk clock.Clock) (workload.Provider, error) {
	plain, err := newProvider(config, clk)
	if err != nil {
		return nil, err
	}

	if config.ScaleSet == "" {
		return plain, nil
	}

	return &scaled{
		provider: plain, name: config.ScaleSet, runnerGroup: config.RunnerGroup, service: newService(plain, config),
	}, nil
}

// Validate asks for the runner group at the service of scale sets too. The set itself is
// made when it is first needed.
func (s *scaled) Validate(ctx context.Context) error {
	if err := s.provider.Validate(ctx); err != nil {
		return err
	}

	_, err := s.service.group(ctx, s.runnerGroup)

	return err
}

// Issue makes a JIT configuration of the set. Labels and group are the set's.
func (s *scaled) Issue(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	jit, err := registrationKind(req.Registration)
	if err != nil {
		return workload.Credential{}, err
	}

	if !jit {
		return workload.Credential{}, workload.Reject(ReasonScaleSet, fmt.Sprintf(
			"runners of scale set %s cannot register with a token: set registration to jit in bootstrap.config.github of the template",
			s.name))
	}

	if err := checkRequest(req); err != nil {
		return workload.Credential{}, err
	}

	out, taken, err := s.configure(ctx, req)
	if err != nil || !taken {
		return out, err
	}

	if err := s.removeRemnant(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	out, taken, err = s.configure(ctx, req)
	if err == nil && taken {
		err = s.conflict(req.Name)
	}

	return out, err
}

// configure makes the configuration of one runner, and tells whether its name is taken. A
// set that is gone is made anew, once.
func (s *scaled) configure(ctx context.Context, req workload.RunnerRequest) (workload.Credential, bool, error) {
	for try := 1; ; try++ {
		set, err := s.ensure(ctx)
		if err != nil {
			return workload.Credential{}, false, err
		}

		out, err := s.service.configure(ctx, set.ID, req)

		switch refused := asRefusal(err); {
		case err == nil:
			return out, false, nil
		case refused.is(http.StatusConflict, "AgentExistsException"):
			return workload.Credential{}, true, nil
		case refused.is(http.StatusNotFound, "") && try == 1:
			s.forget()
		default:
			return workload.Credential{}, false, s.service.explain("making runner "+req.Name, err)
		}
	}
}

// ensure gives the set, and makes it if there is none.
func (s *scaled) ensure(ctx context.Context) (scaleSet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.set != nil {
		return *s.set, nil
	}

	group, err := s.service.group(ctx, s.runnerGroup)
	if err != nil {
		return scaleSet{}, err
	}

	set, err := s.service.ensure(ctx, group, s.name)
	if err != nil {
		return scaleSet{}, err
	}

	if s.set = &set; s.known == nil || s.known.prefix != s.tally(set).prefix {
		fresh := s.tally(set)
		s.known = &fresh
	}

	return set, nil
}

// forget makes the next caller look for the set again.
func (s *scaled) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.set = nil
}

func (s *scaled) tally(set scaleSet) tally {
	like := workload.Job{Platform: v1alpha1.WorkloadGitHubActions, Queue: s.name}

	switch where := s.urls.scope; {
	case where.repo != "":
		like.Repository = where.owner + "/" + where.repo
	case where.owner != "":
		like.Organization = where.owner
	}

	return newTally(set.ID, s.urls.runner, like)
}

// Job gives the word of the set's own queue on its jobs; GitHub knows them by no id that
// its other interfaces take.
func (s *scaled) Job(ctx context.Context, repo, id string) (workload.Job, error) {
	if !strings.HasPrefix(id, scaleSetJob) {
		return s.provider.Job(ctx, repo, id)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.known == nil || !s.live {
		return workload.Job{}, fmt.Errorf("ask for job %s: scale set %s is not listened to at present", id, s.name)
	}

	if !strings.HasPrefix(id, s.known.prefix) {
		return over(workload.Job{Platform: v1alpha1.WorkloadGitHubActions, ID: id, Repository: repo, Queue: s.name}, s.clock.Now()), nil
	}

	job, ok := s.known.find(id, s.clock.Now())
	if !ok {
		return workload.Job{}, fmt.Errorf(
			"ask for job %s: it may be one of those that scale set %s runs without naming them", id, s.name)
	}

	if job.Repository == "" {
		job.Repository = repo
	}

	return job, nil
}

// credential reads the service's answer.
func credential(config jitConfiguration) workload.Credential {
	out := workload.Credential{JITConfig: config.Encoded}
	if config.Runner.ID > 0 {
		out.RunnerID = strconv.FormatInt(config.Runner.ID, 10)
	}

	return out
}
