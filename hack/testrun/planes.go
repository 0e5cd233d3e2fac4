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
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/lease"
	"github.com/hyperfleet/hyperfleet/test/libvirt"
	"github.com/hyperfleet/hyperfleet/test/pgproc"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

// servers has the servers that the test programs of a run share.
type servers struct {
	// dir is the folder for the files of the servers, and root is the folder of the module.
	dir, root string

	out  io.Writer
	bill func(dir string, cpu time.Duration)
	// ctx is canceled at the end of the run and stops the servers.
	ctx context.Context //nolint:containedctx // the lifetime of the servers

	mu       sync.Mutex
	changed  *sync.Cond
	planes   []*controlPlane
	postgres func() (*pgproc.Server, error)
	libvirt  func() (*libvirt.Host, error)
	// libvirtHost is the host that libvirt has started, or nil.
	libvirtHost *libvirt.Host
}

// controlPlane is a control plane that one test program uses at a time.
type controlPlane struct {
	*kubeproc.Cluster

	dir string
	// withManagers is true if the control plane has a kube-controller-manager.
	withManagers bool
	isBusy       bool
	// restoring is true while the contents are restored. The control plane is free or stopped soon after.
	restoring bool
	// contents are the contents of the control plane between leases: empty, or withOwnCRDs, which is nil until a
	// lease needs it.
	contents, empty, withOwnCRDs *contents
}

func newServers(life context.Context, dir, root string, out io.Writer, bill func(string, time.Duration)) *servers {
	log.SetLogger(logr.Discard()) // controller-runtime warns if nothing is set, and the clients of kubeproc use it

	s := &servers{dir: dir, root: root, out: out, bill: bill, ctx: life}
	s.changed = sync.NewCond(&s.mu)
	s.postgres = sync.OnceValues(func() (*pgproc.Server, error) {
		return pgproc.Start(life, pgproc.Options{Dir: filepath.Join(dir, "postgres")})
	})

	s.libvirt = sync.OnceValues(func() (*libvirt.Host, error) {
		host, err := libvirt.Open(life, libvirt.Options{})

		s.mu.Lock()
		defer s.mu.Unlock()

		s.libvirtHost = host

		return host, err
	})

	return s
}

// providers returns the providers of leases by kind.
func (s *servers) providers() map[string]lease.Provider {
	return map[string]lease.Provider{
		kube.LeaseKind: s.leaseControlPlane, postgres.LeaseKind: s.leaseDatabase, libvirt.LeaseKind: s.leaseLibvirt,
	}
}

// leaseLibvirt returns the shared libvirt host. Each test creates its own storage pool on it.
func (s *servers) leaseLibvirt(context.Context, lease.Request) (any, func(), error) {
	host, err := s.libvirt()
	if err != nil {
		return nil, nil, err
	}

	return libvirt.Lease{Dir: host.Dir}, func() {}, nil
}

// leaseDatabase returns the shared PostgreSQL server. Each test creates its own database on it.
func (s *servers) leaseDatabase(context.Context, lease.Request) (any, func(), error) {
	server, err := s.postgres()
	if err != nil {
		return nil, nil, err
	}

	return postgres.Lease{URL: server.URL("postgres")}, func() {}, nil
}

// leaseControlPlane returns an empty control plane for exclusive use, and a function that ends the lease.
func (s *servers) leaseControlPlane(_ context.Context, request lease.Request) (any, func(), error) {
	withManagers := slices.Contains(request.Options, kube.LeaseWithManagers)
	withOwnCRDs := slices.Contains(request.Options, kube.LeaseWithOwnCRDs)

	p, err := s.acquire(withManagers, withOwnCRDs)
	if err != nil {
		return nil, nil, err
	}

	if err := p.prepare(s.ctx, withOwnCRDs, filepath.Join(s.root, kube.OwnCRDs)); err != nil {
		s.release(p)

		return nil, nil, err
	}

	initialCPU := processCPU(p.PIDs())

	return kube.Lease{Dir: p.dir, Host: p.Host()}, func() {
		s.bill(request.Dir, processCPU(p.PIDs())-initialCPU)
		s.release(p)
	}, nil
}

// acquire returns a free control plane, preferably one with the wanted contents. If none is free and none is being
// restored, it starts a new one.
func (s *servers) acquire(withManagers, withOwnCRDs bool) (*controlPlane, error) {
	s.mu.Lock()

	for {
		var free *controlPlane

		isRestoring := false

		for _, p := range s.planes {
			if p.withManagers != withManagers {
				continue
			}

			if !p.isBusy && (free == nil || p.hasOwnCRDs() == withOwnCRDs) {
				free = p
			}

			isRestoring = isRestoring || p.restoring
		}

		if free != nil {
			free.isBusy = true
			s.mu.Unlock()
			free.signal(syscall.SIGCONT)

			return free, nil
		}

		if !isRestoring {
			break
		}

		s.changed.Wait()
	}

	p := &controlPlane{dir: filepath.Join(s.dir, fmt.Sprintf("kube%d", len(s.planes)+1)), withManagers: withManagers, isBusy: true}
	s.planes = append(s.planes, p)
	s.mu.Unlock()

	if err := p.start(s.ctx); err != nil {
		return nil, err
	}

	return p, nil
}

func (p *controlPlane) start(ctx context.Context) error {
	cluster, err := kubeproc.Start(ctx, kubeproc.Options{Dir: p.dir, ControllerManager: p.withManagers})
	if err != nil {
		return err
	}

	p.Cluster = cluster
	p.empty, err = waitSettled(ctx, cluster)
	p.contents = p.empty

	return err
}

func (p *controlPlane) hasOwnCRDs() bool { return p.contents != p.empty }

// prepare gives a control plane between leases the wanted contents. To apply the CRDs takes the API server three seconds
// of CPU time.
func (p *controlPlane) prepare(ctx context.Context, withOwnCRDs bool, ownCRDs string) error {
	switch {
	case withOwnCRDs == p.hasOwnCRDs():
		return nil
	case !withOwnCRDs:
		p.contents = p.empty
	case p.withOwnCRDs != nil:
		p.contents = p.withOwnCRDs
	default:
		config, err := p.AdminConfig()
		if err != nil {
			return err
		}

		if err := kubeproc.Apply(ctx, config, ownCRDs); err != nil {
			return err
		}

		p.withOwnCRDs, err = waitSettled(ctx, p.Cluster)
		if err != nil {
			return err
		}

		p.contents = p.withOwnCRDs

		return nil
	}

	return p.contents.restore(ctx, p.Cluster)
}

// signal sends a signal to the processes of the control plane. A free control plane is stopped with SIGSTOP until
// the next lease, because an idle API server with its etcd uses 5% of a CPU.
func (p *controlPlane) signal(sig syscall.Signal) {
	for _, pid := range p.PIDs() {
		_ = syscall.Kill(pid, sig)
	}
}

// release restores the contents of a control plane, so that another test program can use it. If this fails,
// release stops the control plane, which is not used again.
func (s *servers) release(p *controlPlane) {
	s.mu.Lock()
	p.restoring = true
	s.mu.Unlock()

	err := p.contents.restore(s.ctx, p.Cluster)

	s.mu.Lock()
	defer s.mu.Unlock()

	p.restoring, p.isBusy = false, err != nil
	s.changed.Broadcast()

	if err == nil {
		p.signal(syscall.SIGSTOP)

		return
	}

	if s.ctx.Err() == nil {
		fmt.Fprintf(s.out, "note  a control plane was stopped because it could not be restored: %v\n", err)
		_ = p.Stop()
	}
}

// planeCount returns the number of control planes that were started.
func (s *servers) planeCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.planes)
}

// stop stops all control planes and removes the files of all servers.
func (s *servers) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, p := range s.planes {
		if p.Cluster != nil {
			_ = p.Stop()
		}
	}

	if s.libvirtHost != nil {
		if err := s.libvirtHost.Close(); err != nil {
			fmt.Fprintln(s.out, "note ", err)
		}
	}

	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(s.out, "note ", err)
	}
}
