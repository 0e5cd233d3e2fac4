// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// callTimeout is the timeout of a call to a platform if the template sets none.
const callTimeout = 30 * time.Second

const (
	// credentialMaxAge is how old a scope's credentials may be before their Secrets are read again.
	credentialMaxAge = 15 * time.Second
	// providerIdleTimeout is how long a provider without requests is kept. Its pool or claim may be
	// deleted or may have another scope.
	providerIdleTimeout = time.Hour
)

// Workloads keeps one workload.Provider per scope of a CI platform. It is safe for
// concurrent use.
type Workloads struct {
	Secrets *Secrets
	// Platforms by workload type.
	Platforms map[string]workload.Platform
	// Transport wraps the HTTP transport of a platform's providers. May be nil.
	Transport func(platform string, next http.RoundTripper) http.RoundTripper
	// Network is the innermost HTTP transport. Default: that of Secrets.Egress.
	Network http.RoundTripper
	// Clock is the source of the current time. Default: the real clock.
	Clock clock.Clock

	mu      sync.Mutex
	entries map[string]*workloadEntry
}

type workloadEntry struct {
	digest   [sha256.Size]byte
	provider workload.Provider
	// readAt is the time at which the Secrets were last read, and usedAt the time at which the provider was last used.
	readAt, usedAt time.Time
}

// ResolveRunner returns the runner that a template and a workload (of a pool or a claim) describe
// together.
func (w *Workloads) ResolveRunner(
	template *v1alpha1.HypervisorMachineTemplate, workloadSpec v1alpha1.Workload,
) (workload.RunnerSpec, error) {
	platform, ok := w.Platforms[workloadSpec.Type]
	if !ok {
		return workload.RunnerSpec{}, errclass.New(errclass.Configuration, "WorkloadUnknown",
			"reach the CI platform of template %s: workload type %q is not available", template.Name, workloadSpec.Type)
	}

	return platform.ResolveRunner(template, workloadSpec)
}

// ProviderFor returns the provider of the scope that a template and a workload describe together.
// It reads the Secrets of the provider at most every credentialMaxAge, and replaces the provider if
// they have changed.
func (w *Workloads) ProviderFor(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, workloadSpec v1alpha1.Workload,
) (workload.Provider, error) {
	runner, err := w.ResolveRunner(template, workloadSpec)
	if err != nil {
		return nil, err
	}

	key := newProviderKey(template, runner)
	if provider := w.getFresh(key); provider != nil {
		return provider, nil
	}

	config, err := w.newConfig(ctx, template, runner)
	if isForbiddenSecret(err) {
		w.drop(key) // the provider uses a credential that is no longer allowed
	}

	if err != nil {
		return nil, err
	}

	return w.ensure(key, config)
}

// ProviderToRelease is ProviderFor for a caller that removes a runner. If the Secrets no longer exist, it
// returns the provider with the credentials that this process read last. In a namespace that is being deleted,
// the Secrets are deleted before the claims, and nobody can create them again. If this process has not read the
// credentials, it returns the error of ProviderFor.
func (w *Workloads) ProviderToRelease(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, workloadSpec v1alpha1.Workload,
) (workload.Provider, error) {
	provider, err := w.ProviderFor(ctx, template, workloadSpec)
	if !credential.IsMissing(err) {
		return provider, err
	}

	runner, runnerErr := w.ResolveRunner(template, workloadSpec)
	if runnerErr != nil {
		return nil, runnerErr
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	entry, ok := w.entries[newProviderKey(template, runner)]
	if !ok {
		return nil, err
	}

	entry.usedAt = w.clock().Now()

	return entry.provider, nil
}

// newProviderKey returns the key of a provider. Pools with the same template and scope share a
// provider.
func newProviderKey(template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec) string {
	return strings.Join([]string{
		template.Namespace, template.Name, runner.Platform, runner.Scope.Server, runner.Scope.Enterprise,
		runner.Scope.Organization, runner.Scope.Repository, runner.Group, runner.Queue,
	}, "\x00")
}

// getFresh returns the provider with the key if its Secrets were read within credentialMaxAge; else
// nil.
func (w *Workloads) getFresh(key string) workload.Provider {
	w.mu.Lock()
	defer w.mu.Unlock()

	entry, ok := w.entries[key]
	if !ok || w.clock().Since(entry.readAt) > credentialMaxAge {
		return nil
	}

	entry.usedAt = w.clock().Now()

	return entry.provider
}

// ensure returns the cached provider of a key if it has the same settings and secrets. Otherwise it opens a
// provider and caches it, and drops the providers that were not used for providerIdleTimeout.
func (w *Workloads) ensure(key string, config workload.Config) (workload.Provider, error) {
	digest, err := computeDigest(config.Secrets, config.Template.Spec.Bootstrap, config.Runner.Timeout)
	if err != nil {
		return nil, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if entry, ok := w.entries[key]; ok && entry.digest == digest {
		entry.readAt, entry.usedAt = w.clock().Now(), w.clock().Now()

		return entry.provider, nil
	}

	provider, err := w.Platforms[config.Runner.Platform].Open(config)
	if err != nil {
		return nil, fmt.Errorf("reach the CI platform: %w", err)
	}

	if w.entries == nil {
		w.entries = map[string]*workloadEntry{}
	}

	maps.DeleteFunc(w.entries, func(_ string, old *workloadEntry) bool { return w.clock().Since(old.usedAt) > providerIdleTimeout })

	w.entries[key] = &workloadEntry{digest: digest, provider: provider, readAt: w.clock().Now(), usedAt: w.clock().Now()}

	return provider, nil
}

func (w *Workloads) drop(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.entries, key)
}

// Forget deletes the providers of a deleted template, with their credentials.
func (w *Workloads) Forget(template types.NamespacedName) {
	prefix := template.Namespace + "\x00" + template.Name + "\x00"

	w.mu.Lock()
	defer w.mu.Unlock()

	maps.DeleteFunc(w.entries, func(key string, _ *workloadEntry) bool { return strings.HasPrefix(key, prefix) })
}

func (w *Workloads) clock() clock.Clock {
	if w.Clock != nil {
		return w.Clock
	}

	return clock.RealClock{}
}

// newConfig returns the configuration of the runner's provider, with the values of its Secrets.
func (w *Workloads) newConfig(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec,
) (workload.Config, error) {
	out := workload.Config{
		Runner: runner, Template: template, Secrets: make(map[string]string, len(runner.Secrets)),
		BaseTransport: w.Network, Clock: w.clock(),
	}
	if out.BaseTransport == nil {
		out.BaseTransport = w.Secrets.Egress.Transport()
	}

	if w.Transport != nil {
		out.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return w.Transport(runner.Platform, next) }
	}

	if out.Runner.Timeout <= 0 {
		out.Runner.Timeout = callTimeout
	}

	for _, name := range slices.Sorted(maps.Keys(runner.Secrets)) {
		source := runner.Secrets[name]

		value, err := w.Secrets.readSource(ctx, &source, template.Namespace,
			credential.Destination{Servers: runner.Servers, DefaultServers: w.Platforms[runner.Platform].Traits().PublicServers})
		if err != nil {
			return workload.Config{}, err
		}

		out.Secrets[name] = value
	}

	return out, nil
}
