// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/kit/pgproc"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/lease"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

// servers are what the run's test programs share.
type servers struct {
	dir  string
	out  io.Writer
	bill func(dir string, cpu time.Duration)
	// life ends with the run: the servers do so with it.
	life context.Context //nolint:containedctx // it is the servers' own

	mu       sync.Mutex
	changed  *sync.Cond
	planes   []*plane
	postgres func() (*pgproc.Server, error)
}

// plane is a control plane that one test program has at a time.
type plane struct {
	*kubeproc.Cluster

	dir      string
	managers bool
	busy     bool
	// wiping: it will be free, or gone, in a moment.
	wiping bool
	first  *contents
}

func newServers(life context.Context, dir string, out io.Writer, bill func(string, time.Duration)) *servers {
	s := &servers{dir: dir, out: out, bill: bill, life: life}
	s.changed = sync.NewCond(&s.mu)
	s.postgres = sync.OnceValues(func() (*pgproc.Server, error) {
		return pgproc.Start(life, pgproc.Options{Dir: filepath.Join(dir, "postgres")})
	})

	return s
}

// kinds are the leases that are served.
func (s *servers) kinds() map[string]lease.Provider {
	return map[string]lease.Provider{kube.LeaseKind: s.controlPlane, postgres.LeaseKind: s.database}
}

// database is one server for all: each test has a database of its own there.
func (s *servers) database(context.Context, lease.Request) (any, func(), error) {
	server, err := s.postgres()
	if err != nil {
		return nil, nil, err
	}

	return postgres.Lease{URL: server.URL("postgres")}, func() {}, nil
}

// controlPlane is one that nobody else has, with nothing in it.
func (s *servers) controlPlane(_ context.Context, request lease.Request) (any, func(), error) {
	p, err := s.take(slices.Contains(request.Options, kube.LeaseWithManagers))
	if err != nil {
		return nil, nil, err
	}

	before := cpuOf(p.PIDs())

	return kube.Lease{Dir: p.dir, Host: p.Host()}, func() {
		s.bill(request.Dir, cpuOf(p.PIDs())-before)
		s.giveBack(p)
	}, nil
}

// take gives a free plane, or starts one if none will be free in a moment.
func (s *servers) take(managers bool) (*plane, error) {
	s.mu.Lock()

	for {
		soon := false

		for _, p := range s.planes {
			if p.managers == managers && !p.busy {
				p.busy = true
				s.mu.Unlock()

				return p, nil
			}

			soon = soon || p.managers == managers && p.wiping
		}

		if !soon {
			break
		}

		s.changed.Wait()
	}

	p := &plane{dir: filepath.Join(s.dir, fmt.Sprintf("kube%d", len(s.planes)+1)), managers: managers, busy: true}
	s.planes = append(s.planes, p)
	s.mu.Unlock()

	if err := p.start(s.life); err != nil {
		return nil, err
	}

	return p, nil
}

func (p *plane) start(ctx context.Context) error {
	cluster, err := kubeproc.Start(ctx, kubeproc.Options{Dir: p.dir, ControllerManager: p.managers})
	if err != nil {
		return err
	}

	p.Cluster = cluster
	p.first, err = settled(ctx, cluster)

	return err
}

// giveBack empties a plane for the next one. One that can't be emptied is not used again.
func (s *servers) giveBack(p *plane) {
	s.mu.Lock()
	p.wiping = true
	s.mu.Unlock()

	err := p.first.restore(s.life, p.Cluster)

	s.mu.Lock()
	defer s.mu.Unlock()

	p.wiping, p.busy = false, err != nil
	s.changed.Broadcast()

	if err != nil && s.life.Err() == nil {
		fmt.Fprintf(s.out, "note  a control plane could not be emptied, another one takes its place: %v\n", err)
		_ = p.Stop()
	}
}

// started says how many control planes were.
func (s *servers) started() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.planes)
}

// stop ends all servers and removes what they wrote.
func (s *servers) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, p := range s.planes {
		if p.Cluster != nil {
			_ = p.Stop()
		}
	}

	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(s.out, "note ", err)
	}
}
