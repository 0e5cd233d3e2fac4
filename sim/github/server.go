// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Server is one simulated GitHub. Create it with New, serve Handler, serve Control on a separate
// listener, and call Close at the end.
type Server struct {
	*engine.Record

	core    *engine.Core
	opts    Options
	spec    *Spec
	api     http.Handler
	control http.Handler
	shapes  *shapes

	// The core's Mu guards the following fields.
	outbox          *engine.Outbox[delivery]
	ids             ids
	repos           map[string]*repository // by lower-case full name
	moved           map[string]*repository // by lower-case former full name
	orgs            map[string]*account    // by lower-case login
	groups          []*group
	runners         map[int64]*runner
	jobs            map[int64]*job
	runs            map[int64]*workflowRun
	queue           []*job // status queued, oldest first
	tokens          map[string]*grant
	credentials     map[string]*credential
	hooks           []*hook
	downloads       []RunnerDownload // of the runner; nil means those of runnerVersion
	registeredCount int
	quotas          map[int64]*quota // by installation
	// registrations are the times of the registrations of the last minutes.
	registrations map[scope][]time.Time
	runnerKey     *rsa.PrivateKey
	scaling       scaleSets
}

// ids are the last allocated ids.
type ids struct{ runner, job, run, label, delivery, group int64 }

// account is an owner of repositories.
type account struct {
	id    int64
	login string
	user  bool
}

type repository struct {
	id      int64
	owner   *account
	name    string
	private bool
}

func (r *repository) fullName() string { return r.owner.login + "/" + r.name }

// group is a runner group. Runners of a repository are in the group Default, too.
type group struct {
	id         int64
	scope      scope
	name       string
	visibility string
	selected   map[string]bool // lower-case names
}

// New creates a server and starts its goroutines.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	spec, err := opts.Spec, error(nil)
	if spec == nil {
		spec, err = LoadSpec()
	}
	if err != nil {
		return nil, err
	}
	shapes, err := loadShapes(newLinks(opts.URL))
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, spec: spec, shapes: shapes, runnerKey: opts.RunnerKey,
		core: engine.New(engine.Config{
			Clock: opts.Clock, Log: opts.Log, Faults: opts.Faults, Check: control.Faults.Check,
			Seed: opts.Seed, Platform: 0x6f726765, HookTimeout: opts.HookTimeout,
		}),
		ids:   ids{job: 30_000_000_000, run: 5_400_000_000, label: 100, delivery: 25_000_000_000, group: 1},
		repos: map[string]*repository{}, moved: map[string]*repository{},
		orgs: map[string]*account{}, registrations: map[scope][]time.Time{},
		quotas:  map[int64]*quota{},
		runners: map[int64]*runner{}, jobs: map[int64]*job{}, runs: map[int64]*workflowRun{},
		tokens: map[string]*grant{}, credentials: map[string]*credential{},
	}
	s.Record = s.core.Record
	if err := s.populate(); err != nil {
		return nil, err
	}
	s.api = s.newAPIHandler()
	s.control = control.NewHandler(s, func(target control.WebhookTarget) error {
		s.SetWebhook(target)
		return nil
	})
	s.outbox = engine.NewOutbox(s.core, s.deliver)
	s.core.Schedule(s.computeDelay)
	return s, nil
}

func (s *Server) populate() error {
	for _, repo := range s.opts.Repos {
		login, name, _ := strings.Cut(repo.FullName, "/")
		owner, ok := s.orgs[strings.ToLower(login)]
		if !ok {
			owner = &account{id: 33435682 + int64(len(s.orgs)), login: login, user: repo.UserOwned}
			s.orgs[strings.ToLower(login)] = owner
		}
		s.repos[strings.ToLower(repo.FullName)] = &repository{
			id: 445650657 + int64(len(s.repos)), owner: owner, name: name, private: repo.Private,
		}
	}
	for _, g := range s.opts.Groups {
		if err := s.addGroup(g); err != nil {
			return err
		}
	}
	for _, h := range s.opts.Hooks {
		s.hooks = append(s.hooks, &hook{Hook: h})
	}
	return s.addCredentials()
}

func (s *Server) addGroup(g Group) error {
	sc := scope{kind: scopeOrg, name: strings.ToLower(g.Owner)}
	if slug, ok := strings.CutPrefix(sc.name, "enterprises/"); ok {
		sc = scope{kind: scopeEnterprise, name: slug}
	} else if s.orgs[sc.name] == nil || s.orgs[sc.name].user {
		return fmt.Errorf("add runner group %q: there is no organisation %q", g.Name, g.Owner)
	}
	visibility := g.Visibility
	if visibility == "" {
		visibility = "all"
	}
	s.ids.group++
	added := &group{id: s.ids.group, scope: sc, name: g.Name, visibility: visibility, selected: map[string]bool{}}
	for _, name := range g.Selected {
		added.selected[strings.ToLower(name)] = true
	}
	s.groups = append(s.groups, added)
	return nil
}

// Handler returns the handler of the API under / and /api/v3/, and of the runner service.
func (s *Server) Handler() http.Handler { return s.api }

// Control returns the handler of the control API. It has no authentication.
func (s *Server) Control() http.Handler { return s.control }

// Close stops the goroutines and ends the open polls.
func (s *Server) Close() { s.core.Close() }

// addViolation records a violation. The caller must not hold the lock.
func (s *Server) addViolation(kind, method, path string, err error) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	s.addViolationLocked(kind, method, path, err)
}

func (s *Server) addViolationLocked(kind, method, path string, err error) {
	s.core.AddViolation(kind, method, path, err.Error())
}

// SetWebhook sets the target of every hook. An empty URL disables webhooks.
func (s *Server) SetWebhook(target control.WebhookTarget) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	for _, h := range s.hooks {
		h.URL, h.Secret = target.URL, target.Secret
	}
}

func (s *Server) now() time.Time { return s.core.Now() }

// lock locks core.Mu, which the caller unlocks, and applies the deadlines that have passed.
func (s *Server) lock() {
	s.core.Mu.Lock()
	s.advance(s.now())
}

// ensureRunnerKey returns the signing key of all simulated runners, and creates it if it is
// missing. One key is enough, because runners have different client ids. The lock is held.
func (s *Server) ensureRunnerKey() (*rsa.PrivateKey, error) {
	if s.runnerKey != nil {
		return s.runnerKey, nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, errors.Join(errors.New("create the runners' key"), err)
	}
	s.runnerKey = key
	return key, nil
}
