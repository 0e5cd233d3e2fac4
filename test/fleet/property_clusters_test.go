// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// outage is a way in which a hypervisor becomes unavailable.
type outage string

const (
	wrongSecret outage = "wrong secret"
	nodesDown   outage = "nodes down"
	serverError outage = "server error"
	refused     outage = "token refused"
)

// outages returns all outages.
func outages() []any { return []any{wrongSecret, nodesDown, serverError, refused} }

// sitePool has hypervisors that parallel runs borrow.
type sitePool struct {
	*fixture

	free chan *fleet.Site
}

// newSitePool creates n hypervisors.
func newSitePool(w *fixture, n int) *sitePool {
	w.T.Helper()

	s := &sitePool{fixture: w, free: make(chan *fleet.Site, n)}

	for i := range n {
		site := s.createSite(fmt.Sprintf("site-%d", i), false, fleet.Model())
		s.EventuallyReady(site.Template)
		s.free <- site
	}

	return s
}

// setSecret sets the token in a site's Secret. It may be called from any goroutine.
func (s *sitePool) setSecret(site *fleet.Site, value string) string {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"stringData":{"tokenSecret":%q}}`, value))
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = s.Namespace, site.Secret

	if err := s.Client.Patch(context.Background(), secret, patch); err != nil {
		return err.Error()
	}

	return ""
}

// breakSite makes a site unavailable. fix makes it available again.
func (s *sitePool) breakSite(site *fleet.Site, what outage) (problem string, fix func() string) {
	var unfault func()

	switch what {
	case wrongSecret:
		return s.setSecret(site, "00000000-0000-0000-0000-00000000dead"), func() string { return s.setSecret(site, pve.DefaultSecret) }
	case nodesDown:
		unfault = site.PVE.AddFault(pve.Fault{Kind: pve.FaultNodeDown})
	case serverError:
		unfault = site.PVE.AddFault(pve.Fault{Kind: pve.FaultError, Status: 503, Reason: "Service Unavailable"})
	case refused:
		unfault = site.PVE.AddFault(pve.Fault{Kind: pve.FaultUnauthorized})
	}

	return "", func() string { unfault(); return "" }
}

// testConnections checks that a cluster with valid parameters is connected, and that a cluster that becomes
// unavailable reports this and gets no machines until it is available again, while other clusters are not
// affected.
func testConnections(t *testing.T, s *sitePool) {
	t.Helper()

	const count = 3

	property.Check(t, "clusters do not disturb each other", newOptions(3, 1), prop.ForAllNoShrink(func(broken []bool, what outage) string {
		var wg sync.WaitGroup

		problems := make([]string, count)

		for i := range count {
			wg.Go(func() {
				site := <-s.free
				defer func() { s.free <- site }()

				if broken[i] {
					problems[i] = s.breakAndFix(site, what)
				} else {
					problems[i] = s.checkUndisturbed(site)
				}
			})
		}

		wg.Wait()

		return strings.Join(slices.DeleteFunc(problems, func(p string) bool { return p == "" }), "\n")
	}, gen.SliceOfN(count, gen.Bool()), gen.OneConstOf(outages()...)))
}

// breakAndFix creates a claim while its cluster is unavailable.
func (s *sitePool) breakAndFix(site *fleet.Site, what outage) string {
	claim := site.NewClaim(s.Fleet, s.newName("waits"))
	problem, fix := s.breakSite(site, what)
	cluster := site.Cluster.DeepCopy()

	text := firstProblem(
		func() string { return problem },
		func() string { return s.waitForReady(cluster, false) },
		func() string { return s.create(claim) },
		func() string { return s.waitForReady(claim, false) },
		func() string {
			if len(site.PVE.Snapshot().CreatedVMs()) > 0 || claim.Status.VMRef != nil {
				return "a machine was created on an unavailable cluster: " + describeConditions(claim)
			}

			ready := meta.FindStatusCondition(cluster.Status.Conditions, step.Ready)
			if ready.Reason == "" || ready.Message == "" {
				return "no reason or message: " + describeConditions(cluster)
			}

			return ""
		},
	) + fix()

	return firstProblem(
		func() string { return text },
		func() string { return s.waitForReady(cluster, true) },
		func() string {
			return s.waitForPhase(claim, v1alpha1.MachineClaimBootstrapping, v1alpha1.MachineClaimReady)
		},
		func() string { return s.delete(claim) },
		func() string { return s.waitForDeletion(claim) },
		func() string { return s.findClaimLeftovers(claim) },
	)
}

// checkUndisturbed creates and deletes a machine on a site, and checks that the condition of the cluster does not
// change.
func (s *sitePool) checkUndisturbed(site *fleet.Site) string {
	cluster, claim := site.Cluster.DeepCopy(), site.NewClaim(s.Fleet, s.newName("undisturbed"))
	before := meta.FindStatusCondition(cluster.Status.Conditions, step.Ready)

	return firstProblem(
		func() string { return s.waitForReady(cluster, true) },
		func() string {
			before = meta.FindStatusCondition(cluster.Status.Conditions, step.Ready).DeepCopy()

			return s.create(claim)
		},
		func() string {
			return s.waitForPhase(claim, v1alpha1.MachineClaimBootstrapping, v1alpha1.MachineClaimReady)
		},
		func() string {
			if n := len(site.PVE.Snapshot().CreatedVMs()); n != 1 {
				return fmt.Sprintf("%d machines on %s, want 1", n, cluster.Name)
			}

			return s.delete(claim)
		},
		func() string { return s.waitForDeletion(claim) },
		func() string {
			if _, err := s.get(cluster); err != nil {
				return err.Error()
			}

			return cmp.Diff(before, meta.FindStatusCondition(cluster.Status.Conditions, step.Ready))
		},
		func() string { return s.findClaimLeftovers(claim) },
	)
}

// errOther is the error of the provider that no cluster uses.
var errOther = errors.New("wrong provider")

// providerRecorder records the configurations with which connections were created.
type providerRecorder struct {
	mu      sync.Mutex
	configs map[string]hypervisor.Config
	// calledOther is true if a connection of the other provider was created.
	calledOther atomic.Bool
}

// newConnection records the configuration, and connects to Proxmox VE.
func (m *providerRecorder) newConnection(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
	m.mu.Lock()
	m.configs[config.Name] = config
	m.mu.Unlock()

	return proxmox.New(config, options)
}

// failOther records that the wrong provider was called.
func (m *providerRecorder) failOther(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) {
	m.calledOther.Store(true)

	return nil, errOther
}

// testProvider checks that the provider in spec.provider gets the configuration of the spec, and that an unknown
// provider is rejected at admission with its name and the names of the existing providers.
func testProvider(t *testing.T, w *fixture, m *providerRecorder) {
	t.Helper()

	word := gen.RegexMatch(`^[a-z]{3,8}$`)

	property.Check(t, "the provider is the named one and is configured", newOptions(6, 6), prop.ForAllNoShrink(
		func(provider string, nodes, clones int32, words []string) string {
			storage, pool, tag := words[0], words[1], words[2]
			cluster := w.NewCluster()
			cluster.Name = w.Namespace + "-" + w.newName("provider")
			cluster.Spec.Provider = provider
			cluster.Spec.Nodes = []string{"pve1", "pve2", "pve3"}[:nodes]
			cluster.Spec.Limits = &v1alpha1.HypervisorLimits{ClonesPerStorage: clones, CallsPerNode: clones + 1, MemoryPercent: 90 + clones}
			cluster.Spec.DefaultStorage, cluster.Spec.ResourcePool = storage, pool
			cluster.Spec.VMIDRange = &v1alpha1.VMIDRange{Min: 200000, Max: 200000 + clones}
			cluster.Spec.Tags = map[string]string{"team": tag}

			problem := w.create(cluster)
			if provider != "proxmox" {
				if !strings.Contains(problem, provider) || !strings.Contains(problem, "proxmox") {
					return "want a rejection that names the unknown provider and the existing ones, got " + problem
				}

				return ""
			}

			defer w.deleteCluster(cluster)

			return firstProblem(
				func() string { return problem },
				func() string { return m.compareConfig(w, cluster) },
			)
		},
		gen.Weighted([]gen.WeightedGen{{Weight: 3, Gen: gen.Const("proxmox")}, {Weight: 1, Gen: word}}),
		gen.Int32Range(1, 3), gen.Int32Range(1, 8), gen.SliceOfN(3, word)))
}

// compareConfig waits for the connection to the cluster, and compares its configuration with the spec.
func (m *providerRecorder) compareConfig(w *fixture, cluster *v1alpha1.HypervisorCluster) string {
	var got hypervisor.Config

	problem := w.Await("a connection to "+cluster.Name, func() (bool, string) {
		m.mu.Lock()
		defer m.mu.Unlock()

		config, ok := m.configs[cluster.Name]
		got = config

		return ok, "no connection was created"
	})
	if problem != "" {
		return problem
	}

	spec := cluster.Spec

	return cmp.Diff(hypervisor.Config{
		Name: cluster.Name, Endpoint: spec.Endpoint,
		Credentials: hypervisor.Credentials{TokenID: pve.DefaultTokenID, TokenSecret: pve.DefaultSecret},
		Nodes:       spec.Nodes, DefaultStorage: spec.DefaultStorage, ISOStorage: spec.ISOStorage,
		DefaultNetwork: spec.DefaultNetwork, ResourcePool: spec.ResourcePool,
		IDMin: int(spec.VMIDRange.Min), IDMax: int(spec.VMIDRange.Max),
		ClonesPerStorage: int(spec.Limits.ClonesPerStorage), CallsPerNode: int(spec.Limits.CallsPerNode),
		MemoryPercent: int(spec.Limits.MemoryPercent),
		Tags:          spec.Tags,
	}, got, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "TLS" }, cmp.Ignore()))
}

// deleteCluster deletes a cluster without waiting for its removal.
func (w *fixture) deleteCluster(cluster *v1alpha1.HypervisorCluster) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	_ = w.Client.Delete(ctx, cluster)
}
