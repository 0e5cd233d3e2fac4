// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// listener is a pool that takes webhooks.
type listener struct {
	Pool

	secret v1alpha1.SecretKeySelector
}

// receive verifies a webhook, and gives its job and the pools that trust it.
func (r *Receiver) receive(
	ctx context.Context, header http.Header, body []byte, platform string, parser workload.WebhookParser,
) (workload.Job, []listener, *problem) {
	refuse := func(out problem) (workload.Job, []listener, *problem) { return workload.Job{}, nil, &out }

	scope, err := parser.Scope(header, body)
	if err != nil {
		return refuse(malformed(err))
	}

	listeners, err := r.listeners(ctx, platform)
	if err != nil {
		return refuse(unavailable(err))
	}

	covering := slices.DeleteFunc(slices.Clone(listeners), func(l listener) bool { return !l.covers(jobOf(scope, platform)) })
	verify := func(secret []byte) error { return parser.Verify(header, body, secret) }

	trusted, err := r.trusted(ctx, covering, verify)
	if err != nil {
		return refuse(unavailable(err))
	}

	if len(trusted) == 0 {
		return refuse(r.rejectUnverified(ctx, header, body, listeners, verify, parser))
	}

	job, speaks, err := parser.Parse(header, body)
	taken := func() bool { return slices.ContainsFunc(trusted, func(l listener) bool { return l.takes(job) }) }

	switch {
	case err != nil:
		return refuse(malformed(err))
	case !speaks || r.config.Platforms.hosted(job) && !taken():
		return refuse(ignored())
	}

	return job, trusted, nil
}

// jobOf stands for any job of a scope.
func jobOf(scope workload.Scope, platform string) workload.Job {
	return workload.Job{Platform: platform, Repository: scope.Repository, Organization: scope.Organization}
}

// record writes the job into the ledger of every namespace that has a pool for it.
func (r *Receiver) record(ctx context.Context, job workload.Job, pools []listener) problem {
	namespaces := make([]string, 0, len(pools))
	for _, pool := range pools {
		namespaces = append(namespaces, pool.Namespace)
	}

	slices.Sort(namespaces)

	for _, namespace := range slices.Compact(namespaces) {
		if err := r.inbox.record(ctx, namespace, job); err != nil {
			return unavailable(err)
		}
	}

	return accepted()
}

// listeners are the pools of a platform that take webhooks.
func (r *Receiver) listeners(ctx context.Context, platform string) ([]listener, error) {
	pools, err := r.config.Platforms.readPools(ctx, r.config.Client, "")
	if err != nil {
		return nil, err
	}

	out := make([]listener, 0, len(pools))

	for _, pool := range pools {
		hook := pool.object.Spec.Workload.Webhook
		if hook != nil && pool.Runner.Platform == platform && pool.object.DeletionTimestamp.IsZero() {
			out = append(out, listener{Pool: pool.Pool, secret: hook.Secret.SecretKeyRef})
		}
	}

	return out, nil
}

// Pools reads the pools of a namespace that are not being deleted.
func (p Platforms) Pools(ctx context.Context, reader client.Reader, namespace string) ([]Pool, error) {
	read, err := p.readPools(ctx, reader, namespace)
	if err != nil {
		return nil, err
	}

	out := make([]Pool, 0, len(read))

	for _, pool := range read {
		if pool.object.DeletionTimestamp.IsZero() {
			out = append(out, pool.Pool)
		}
	}

	return out, nil
}

// readPool is a pool as it was read.
type readPool struct {
	Pool

	object   *v1alpha1.RunnerPool
	template *v1alpha1.HypervisorMachineTemplate
}

// readPools reads the pools of a namespace, or of all for "". They belong to the cache
// and must not be changed.
func (p Platforms) readPools(ctx context.Context, reader client.Reader, namespace string) ([]readPool, error) {
	var (
		pools     v1alpha1.RunnerPoolList
		templates v1alpha1.HypervisorMachineTemplateList
	)

	if err := reader.List(ctx, &pools, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list runner pools: %w", err)
	}

	if err := reader.List(ctx, &templates, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list machine templates: %w", err)
	}

	byNamespace := map[string]Templates{}

	for i := range templates.Items {
		template := &templates.Items[i]
		if byNamespace[template.Namespace] == nil {
			byNamespace[template.Namespace] = Templates{}
		}

		byNamespace[template.Namespace][template.Name] = template
	}

	out := make([]readPool, 0, len(pools.Items))

	for i := range pools.Items {
		pool := &pools.Items[i]
		known := byNamespace[pool.Namespace]
		out = append(out, readPool{Pool: p.PoolOf(pool, known), object: pool, template: known[pool.Spec.TemplateRef.Name]})
	}

	return out, nil
}

// trusted gives the pools whose secret verifies the webhook. If none does, secrets that
// may have been rotated are read anew, once. An error means that the API server could not
// be asked.
func (r *Receiver) trusted(ctx context.Context, pools []listener, verify func([]byte) error) ([]listener, error) {
	for _, age := range []time.Duration{secretAge, rereadAge} {
		out, err := r.verified(ctx, pools, verify, age)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}

	return nil, nil
}

func (r *Receiver) verified(
	ctx context.Context, pools []listener, verify func([]byte) error, age time.Duration,
) ([]listener, error) {
	var (
		out     []listener
		checked = map[string]bool{}
	)

	for _, pool := range pools {
		secret, err := r.secrets.get(ctx, pool.secret, pool.Namespace, age)

		switch {
		case err != nil && errclass.Of(err) == errclass.Configuration:
			r.config.Log.LogAttrs(ctx, slog.LevelWarn, "webhook secret cannot be read",
				slog.String("namespace", pool.Namespace), slog.String("pool", pool.Name), slog.String("cause", err.Error()))

			continue
		case err != nil:
			return nil, fmt.Errorf("read webhook secret of pool %s: %w", pool.Key(), err)
		}

		right, done := checked[secret]
		if !done {
			right = verify([]byte(secret)) == nil
			checked[secret] = right
		}

		if right {
			out = append(out, pool)
		}
	}

	return out, nil
}

// maxStrangerSecrets bounds the work that a webhook of a scope without pools causes.
const maxStrangerSecrets = 32

var errUnverified = errors.New("no secret of a pool that covers the webhook's scope verifies it")

// rejectUnverified answers a webhook that no pool of its scope verifies. Only one that is
// genuine for some other pool is told that its scope has none: an App's ping, which has no
// scope, or a repository that nobody serves.
func (r *Receiver) rejectUnverified(
	ctx context.Context, header http.Header, body []byte, all []listener, verify func([]byte) error,
	parser workload.WebhookParser,
) problem {
	known, err := r.verified(ctx, all[:min(len(all), maxStrangerSecrets)], verify, secretAge)
	if err != nil {
		return unavailable(err)
	}

	if len(known) == 0 {
		return problem{
			status: http.StatusUnauthorized, result: "signature", cause: errUnverified,
			Error: "the webhook's signature is missing, or is not made with the secret of a RunnerPool that serves its scope",
			Fix: "set one secret in the webhook's settings at the platform and in the Secret that the RunnerPool's " +
				"workload.webhook.secret names, and check the pool's repository or organization",
		}
	}

	if _, speaks, err := parser.Parse(header, body); err == nil && !speaks {
		return ignored()
	}

	return problem{
		status: http.StatusNotFound, result: "noPool",
		Error: "no RunnerPool that holds this webhook's secret serves its repository or organization",
		Fix: "set workload.config.github.repository or organization of a RunnerPool, or of its template, " +
			"or remove the webhook at the platform",
	}
}
