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

// callTimeout bounds a call to a platform where the template says nothing.
const callTimeout = 30 * time.Second

const (
	// reread is how old a scope's credentials may be before their Secrets are read again.
	reread = 15 * time.Second
	// unused is how long a provider is kept that nobody asks for: its pool or claim is gone, or
	// names another scope.
	unused = time.Hour
)

// Workloads keeps one workload.Provider per scope of a CI platform. It is safe for
// concurrent use.
type Workloads struct {
	Secrets *Secrets
	// Platforms by workload type.
	Platforms map[string]workload.Platform
	// Transport wraps the HTTP transport of a platform's providers. May be nil.
	Transport func(platform string, next http.RoundTripper) http.RoundTripper
	// Clock tells the time. Default: the real clock.
	Clock clock.Clock

	mu      sync.Mutex
	entries map[string]*workloadEntry
}

type workloadEntry struct {
	digest   [sha256.Size]byte
	provider workload.Provider
	read     time.Time
}

// Runner gives the runner that a template and a workload (a pool's or a claim's) describe
// together.
func (w *Workloads) Runner(
	template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload,
) (workload.RunnerSpec, error) {
	platform, ok := w.Platforms[load.Type]
	if !ok {
		return workload.RunnerSpec{}, errclass.New(errclass.Configuration, "WorkloadUnknown",
			"reach the CI platform of template %s: workload type %q is not available", template.Name, load.Type)
	}

	return platform.Runner(template, load)
}

// For gives the provider of the scope that a template and a workload name together.
func (w *Workloads) For(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload,
) (workload.Provider, error) {
	runner, err := w.Runner(template, load)
	if err != nil {
		return nil, err
	}

	key := keyOf(template, runner)
	if provider := w.fresh(key); provider != nil {
		return provider, nil
	}

	config, err := w.config(ctx, template, runner)
	if refused(err) {
		w.drop(key) // what was allowed once is not used on
	}

	if err != nil {
		return nil, err
	}

	return w.store(key, config)
}

// keyOf names a provider: pools of one template and scope share it.
func keyOf(template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec) string {
	return strings.Join([]string{
		template.Namespace, template.Name, runner.Platform, runner.Scope.Server, runner.Scope.Enterprise,
		runner.Scope.Organization, runner.Scope.Repository, runner.Group, runner.Queue,
	}, "\x00")
}

// fresh gives the provider of a scope whose Secrets were read a short while ago.
func (w *Workloads) fresh(key string) workload.Provider {
	w.mu.Lock()
	defer w.mu.Unlock()

	entry, ok := w.entries[key]
	if !ok || w.clock().Since(entry.read) > reread {
		return nil
	}

	return entry.provider
}

func (w *Workloads) store(key string, config workload.Config) (workload.Provider, error) {
	digest, err := digestOf(config.Secrets, config.Template.Spec.Bootstrap, config.Runner.Timeout)
	if err != nil {
		return nil, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if entry, ok := w.entries[key]; ok && entry.digest == digest {
		entry.read = w.clock().Now()

		return entry.provider, nil
	}

	provider, err := w.Platforms[config.Runner.Platform].Open(config)
	if err != nil {
		return nil, fmt.Errorf("reach the CI platform: %w", err)
	}

	if w.entries == nil {
		w.entries = map[string]*workloadEntry{}
	}

	maps.DeleteFunc(w.entries, func(_ string, old *workloadEntry) bool { return w.clock().Since(old.read) > unused })

	w.entries[key] = &workloadEntry{digest: digest, provider: provider, read: w.clock().Now()}

	return provider, nil
}

func (w *Workloads) drop(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.entries, key)
}

// Forget drops the providers of a template that is gone, with their credentials.
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

// config reads the secrets that the runner's provider needs.
func (w *Workloads) config(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec,
) (workload.Config, error) {
	out := workload.Config{
		Runner: runner, Template: template, Secrets: make(map[string]string, len(runner.Secrets)),
		Network: w.Secrets.Reach.Transport(), Clock: w.clock(),
	}
	if w.Transport != nil {
		out.Transport = func(next http.RoundTripper) http.RoundTripper { return w.Transport(runner.Platform, next) }
	}

	if out.Runner.Timeout <= 0 {
		out.Runner.Timeout = callTimeout
	}

	for _, name := range slices.Sorted(maps.Keys(runner.Secrets)) {
		source := runner.Secrets[name]

		value, err := w.Secrets.source(ctx, &source, template.Namespace,
			credential.Sent{Servers: runner.Servers, Usual: w.Platforms[runner.Platform].Traits().Servers})
		if err != nil {
			return workload.Config{}, err
		}

		out.Secrets[name] = value
	}

	return out, nil
}
