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

// webhookPool is a pool that accepts webhooks, with the selector of its webhook secret.
type webhookPool struct {
	Pool

	secretRef v1alpha1.SecretKeySelector
}

// verifyAndParse verifies a webhook. It returns the webhook's job and the pools whose secret
// verifies the signature.
func (r *Receiver) verifyAndParse(
	ctx context.Context, header http.Header, body []byte, platform string, parser workload.WebhookParser,
) (workload.Job, []webhookPool, *webhookResponse) {
	refuse := func(out webhookResponse) (workload.Job, []webhookPool, *webhookResponse) {
		return workload.Job{}, nil, &out
	}

	scope, err := parser.ParseScope(header, body)
	if err != nil {
		return refuse(newMalformedResponse(err))
	}

	pools, err := r.listWebhookPools(ctx, platform)
	if err != nil {
		return refuse(newUnavailableResponse(err))
	}

	covering := slices.DeleteFunc(slices.Clone(pools), func(pool webhookPool) bool {
		return !pool.hasScopeOf(newScopeJob(scope, platform))
	})
	verify := func(secret []byte) error { return parser.Verify(header, body, secret) }

	trusted, err := r.findTrusted(ctx, covering, verify)
	if err != nil {
		return refuse(newUnavailableResponse(err))
	}

	if len(trusted) == 0 {
		return refuse(r.rejectUnverified(ctx, header, body, pools, verify, parser))
	}

	job, namesJob, err := parser.ParseJob(header, body)
	canAnyRun := func() bool {
		return slices.ContainsFunc(trusted, func(pool webhookPool) bool { return pool.canRun(job) })
	}

	switch {
	case err != nil:
		return refuse(newMalformedResponse(err))
	case !namesJob || r.config.Platforms.isHosted(job) && !canAnyRun():
		return refuse(newIgnoredResponse())
	}

	return job, trusted, nil
}

// newScopeJob returns a job that has only the scope, for comparisons with the scopes of pools.
func newScopeJob(scope workload.Scope, platform string) workload.Job {
	return workload.Job{Platform: platform, Repository: scope.Repository, Organization: scope.Organization}
}

// record writes the job into the ledger of every namespace that has one of the pools.
func (r *Receiver) record(ctx context.Context, job workload.Job, pools []webhookPool) webhookResponse {
	namespaces := make([]string, 0, len(pools))
	for _, pool := range pools {
		namespaces = append(namespaces, pool.Namespace)
	}

	slices.Sort(namespaces)

	for _, namespace := range slices.Compact(namespaces) {
		if err := r.inbox.record(ctx, namespace, job); err != nil {
			return newUnavailableResponse(err)
		}
	}

	return newAcceptedResponse()
}

// listWebhookPools returns the pools of a platform that accept webhooks and are not being deleted.
func (r *Receiver) listWebhookPools(ctx context.Context, platform string) ([]webhookPool, error) {
	pools, err := r.config.Platforms.readPools(ctx, r.config.Client, "")
	if err != nil {
		return nil, err
	}

	out := make([]webhookPool, 0, len(pools))

	for _, pool := range pools {
		hook := pool.object.Spec.Workload.Webhook
		if hook != nil && pool.Runner.Platform == platform && pool.object.DeletionTimestamp.IsZero() {
			out = append(out, webhookPool{Pool: pool.Pool, secretRef: hook.Secret.SecretKeyRef})
		}
	}

	return out, nil
}

// ListPools returns the pools of a namespace that are not being deleted. An empty namespace means
// all namespaces.
func (p Platforms) ListPools(ctx context.Context, reader client.Reader, namespace string) ([]Pool, error) {
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

// loadedPool is a Pool with the objects that it was built from. The template is nil if it is
// missing.
type loadedPool struct {
	Pool

	object   *v1alpha1.RunnerPool
	template *v1alpha1.HypervisorMachineTemplate
}

// readPools returns the pools of a namespace, or of all namespaces if namespace is empty. The
// objects belong to the cache and must not be changed.
func (p Platforms) readPools(ctx context.Context, reader client.Reader, namespace string) ([]loadedPool, error) {
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

	out := make([]loadedPool, 0, len(pools.Items))

	for i := range pools.Items {
		pool := &pools.Items[i]
		known := byNamespace[pool.Namespace]
		out = append(out, loadedPool{Pool: p.NewPool(pool, known), object: pool, template: known[pool.Spec.TemplateRef.Name]})
	}

	return out, nil
}

// findTrusted returns the pools whose secret verifies the webhook. If no secret does, it reads the
// secrets again once, because a secret may have been rotated. The error is non-nil if the API
// server is unreachable.
func (r *Receiver) findTrusted(ctx context.Context, pools []webhookPool, verify func([]byte) error) ([]webhookPool, error) {
	for _, maxAge := range []time.Duration{maxSecretAge, minRereadAge} {
		out, err := r.findMatchingPools(ctx, pools, verify, maxAge)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}

	return nil, nil
}

// findMatchingPools returns the pools whose secret verifies the webhook. A cached secret is used if it is
// at most maxAge old. findMatchingPools logs and skips a pool whose secret is misconfigured.
func (r *Receiver) findMatchingPools(
	ctx context.Context, pools []webhookPool, verify func([]byte) error, maxAge time.Duration,
) ([]webhookPool, error) {
	var (
		out     []webhookPool
		checked = map[string]bool{}
	)

	for _, pool := range pools {
		secret, err := r.secrets.get(ctx, pool.secretRef, pool.Namespace, maxAge)

		switch {
		case err != nil && errclass.ClassOf(err) == errclass.Configuration:
			r.config.Log.LogAttrs(ctx, slog.LevelWarn, "skipping pool: cannot read its webhook secret",
				slog.String("namespace", pool.Namespace), slog.String("pool", pool.Name), slog.String("cause", err.Error()))

			continue
		case err != nil:
			return nil, fmt.Errorf("read webhook secret of pool %s: %w", pool.Key(), err)
		}

		isValid, isChecked := checked[secret]
		if !isChecked {
			isValid = verify([]byte(secret)) == nil
			checked[secret] = isValid
		}

		if isValid {
			out = append(out, pool)
		}
	}

	return out, nil
}

// maxUnrelatedSecrets limits how many secrets of other scopes are tried for one webhook.
const maxUnrelatedSecrets = 32

var errUnverified = errors.New("no secret of a pool with the webhook's scope verifies the signature")

// rejectUnverified returns the response to a webhook that no pool of the webhook's scope verifies.
// Only if some other pool's secret verifies the webhook does the response disclose that no pool has
// the scope. Examples are the ping of a GitHub App, which has no scope, and a repository without a
// pool.
func (r *Receiver) rejectUnverified(
	ctx context.Context, header http.Header, body []byte, all []webhookPool, verify func([]byte) error,
	parser workload.WebhookParser,
) webhookResponse {
	known, err := r.findMatchingPools(ctx, all[:min(len(all), maxUnrelatedSecrets)], verify, maxSecretAge)
	if err != nil {
		return newUnavailableResponse(err)
	}

	if len(known) == 0 {
		return webhookResponse{
			status: http.StatusUnauthorized, result: "signature", cause: errUnverified,
			Error: "the webhook's signature is missing, or does not match the secret of a RunnerPool that serves its scope",
			Fix: "set the same secret in the webhook's settings at the platform and in the Secret that the RunnerPool's " +
				"workload.webhook.secret names, and check the pool's repository or organization",
		}
	}

	if _, namesJob, err := parser.ParseJob(header, body); err == nil && !namesJob {
		return newIgnoredResponse()
	}

	return webhookResponse{
		status: http.StatusNotFound, result: "noPool",
		Error: "no RunnerPool with this webhook's secret serves its repository or organization",
		Fix: "set workload.config.github.repository or organization of a RunnerPool, or of its template, " +
			"or remove the webhook at the platform",
	}
}
