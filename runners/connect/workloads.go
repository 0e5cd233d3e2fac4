// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// reread is how old a scope's credentials may be before their Secrets are read again.
const reread = 15 * time.Second

// Workloads keeps one workload.Provider per scope of a CI platform. It is safe for
// concurrent use.
type Workloads struct {
	Secrets *Secrets
	// Factories by workload type.
	Factories map[string]workload.Factory
	// Transport wraps the HTTP transport of every provider. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Clock tells the time. Default: the real clock.
	Clock clock.PassiveClock

	mu      sync.Mutex
	entries map[string]*workloadEntry
}

type workloadEntry struct {
	digest   [sha256.Size]byte
	provider workload.Provider
	read     time.Time
}

// For gives the provider of the scope that a template and a workload (a pool's or a
// claim's) name together.
func (w *Workloads) For(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload,
) (workload.Provider, error) {
	factory, ok := w.Factories[load.Type]
	if !ok {
		return nil, errclass.New(errclass.Configuration, "WorkloadUnknown",
			"reach the CI platform of template %s: workload type %q is not available", template.Name, load.Type)
	}

	settings, err := Scope(template, load)
	if err != nil {
		return nil, err
	}

	key := settings.key(template)
	if provider := w.fresh(key); provider != nil {
		return provider, nil
	}

	config, err := w.config(ctx, template, settings)
	if err != nil {
		return nil, err
	}

	return w.store(key, config, factory)
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

func (w *Workloads) store(key string, config workload.Config, factory workload.Factory) (workload.Provider, error) {
	digest, err := digestOf(config.GitHub, config.Timeout)
	if err != nil {
		return nil, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if entry, ok := w.entries[key]; ok && entry.digest == digest {
		entry.read = w.clock().Now()

		return entry.provider, nil
	}

	config.Transport = w.Transport

	provider, err := factory(config)
	if err != nil {
		return nil, fmt.Errorf("reach the CI platform: %w", err)
	}

	if w.entries == nil {
		w.entries = map[string]*workloadEntry{}
	}

	w.entries[key] = &workloadEntry{digest: digest, provider: provider, read: w.clock().Now()}

	return provider, nil
}

func (w *Workloads) clock() clock.PassiveClock {
	if w.Clock != nil {
		return w.Clock
	}

	return clock.RealClock{}
}

func (w *Workloads) config(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, settings GitHubScope,
) (workload.Config, error) {
	bootstrap := template.Spec.Bootstrap.Config
	from := bootstrap.GitHub
	out := &workload.GitHubConfig{
		Owner:        settings.Owner,
		Repository:   settings.Repository,
		Organization: settings.Organization,
		RunnerGroup:  settings.Group,
		APIURL:       from.APIURL,
	}

	if from.RegistrationURLs != nil {
		out.RegistrationURLs = *from.RegistrationURLs
	}

	if from.RunnerURLs != nil {
		out.RunnerURLs = *from.RunnerURLs
	}

	token, err := w.Secrets.source(ctx, from.Credentials, template.Namespace)
	if err != nil {
		return workload.Config{}, err
	}

	out.Token = strings.TrimSpace(token)

	if from.App != nil {
		if out.App, err = w.app(ctx, from.App, template.Namespace); err != nil {
			return workload.Config{}, err
		}
	}

	timeout := 30 * time.Second
	if bootstrap.HTTPClient != nil && bootstrap.HTTPClient.TimeoutSeconds > 0 {
		timeout = time.Duration(bootstrap.HTTPClient.TimeoutSeconds) * time.Second
	}

	return workload.Config{GitHub: out, Timeout: timeout}, nil
}

func (w *Workloads) app(ctx context.Context, app *v1alpha1.GitHubApp, namespace string) (*workload.GitHubApp, error) {
	var id, key, installation string

	for _, field := range []struct {
		from *v1alpha1.SecretValueSource
		to   *string
	}{{&app.AppID, &id}, {&app.PrivateKey, &key}, {&app.InstallationID, &installation}} {
		value, err := w.Secrets.source(ctx, field.from, namespace)
		if err != nil {
			return nil, err
		}

		*field.to = value
	}

	number, err := strconv.ParseInt(strings.TrimSpace(installation), 10, 64)
	if err != nil {
		return nil, errclass.New(errclass.Configuration, "InstallationIDInvalid",
			"read installationId from secret %s: it must be a number, the last part of the installation's URL",
			app.InstallationID.SecretKeyRef.Name)
	}

	return &workload.GitHubApp{
		AppID: strings.TrimSpace(id), PrivateKey: []byte(key), InstallationID: number,
	}, nil
}

// GitHubScope is whose runners are made, and how they are labelled.
type GitHubScope struct {
	Owner, Repository, Organization string
	Labels                          []string
	Group                           string
	RunnerName                      string
}

func (s GitHubScope) key(template *v1alpha1.HypervisorMachineTemplate) string {
	return strings.Join([]string{
		template.Namespace, template.Name, s.Owner, s.Repository, s.Organization, s.Group,
	}, "\x00")
}

// Scope merges a template's and a workload's settings: the workload's win. A repository
// takes precedence over an organisation. It is pure.
func Scope(template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (GitHubScope, error) {
	bootstrap := template.Spec.Bootstrap.Config
	if bootstrap == nil || bootstrap.GitHub == nil {
		return GitHubScope{}, errclass.New(errclass.Configuration, "BootstrapIncomplete",
			"reach the CI platform of template %s: spec.bootstrap.config.github is missing", template.Name)
	}

	var (
		out GitHubScope
		own *v1alpha1.GitHubActionsConfig
	)

	if load.Config != nil && load.Config.GitHub != nil {
		own = load.Config.GitHub
		out.Labels, out.Group, out.RunnerName = own.Labels, own.RunnerGroup, own.RunnerName
	}

	switch scope := github.ScopeOf(own, bootstrap.GitHub); {
	case scope.Repository != "":
		out.Owner, out.Repository, _ = strings.Cut(scope.Repository, "/")
	case scope.Organization != "":
		out.Organization = scope.Organization
	default:
		return GitHubScope{}, errclass.New(errclass.Configuration, "ScopeMissing",
			"reach GitHub for template %s: name a repository (owner and repository) or an organization, "+
				"in the template's bootstrap.config.github or the pool's workload.config.github", template.Name)
	}

	return out, nil
}
