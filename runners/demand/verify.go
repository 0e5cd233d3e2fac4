// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// webhookPool is a pool that accepts webhooks, with the selector of its webhook secret.
type webhookPool struct {
	Pool

	secretRef v1alpha1.SecretKeySelector
}

// newScopeJob returns a job that has only the scope, for comparisons with the scopes of pools.
func newScopeJob(scope workload.Scope, platform string) workload.Job {
	return workload.Job{Platform: platform, Repository: scope.Repository, Organization: scope.Organization}
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

// findTrustedPools returns the pools whose secret verifies the webhook. If no secret does, it reads the
// secrets again once, because a secret may have been rotated. The error is non-nil if the API
// server is unreachable.
func (r *Receiver) findTrustedPools(ctx context.Context, pools []webhookPool, verify func([]byte) error) ([]webhookPool, error) {
	pools = limitSecrets(pools)

	for _, maxAge := range []time.Duration{maxSecretAge, minRereadAge} {
		out, err := r.findVerifyingPools(ctx, pools, verify, maxAge)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}

	return nil, nil
}

// maxSecretsPerNamespace limits the secrets of one namespace that are tried for one webhook. Otherwise, a
// namespace with many pools would delay the webhooks of all namespaces.
const maxSecretsPerNamespace = 32

// limitSecrets returns the pools without those whose secret exceeds maxSecretsPerNamespace. It keeps the pools of
// a repository or an organization first, because a pool of an enterprise could receive every webhook.
func limitSecrets(pools []webhookPool) []webhookPool {
	pools = slices.SortedFunc(slices.Values(pools), func(a, b webhookPool) int {
		return cmp.Or(cmp.Compare(a.Runner.Scope.Enterprise, b.Runner.Scope.Enterprise), cmp.Compare(a.Name, b.Name))
	})
	tried := map[string]map[string]bool{}

	return slices.DeleteFunc(pools, func(pool webhookPool) bool {
		if tried[pool.Namespace] == nil {
			tried[pool.Namespace] = map[string]bool{}
		}

		secrets, key := tried[pool.Namespace], newSecretKey(pool.secretRef, pool.Namespace).selector
		if !secrets[key] && len(secrets) == maxSecretsPerNamespace {
			return true
		}

		secrets[key] = true

		return false
	})
}

// findVerifyingPools returns the pools whose secret verifies the webhook. A cached secret is used if it is
// at most maxAge old. findVerifyingPools logs and skips a pool whose secret is misconfigured.
func (r *Receiver) findVerifyingPools(
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
	known, err := r.findVerifyingPools(ctx, all[:min(len(all), maxUnrelatedSecrets)], verify, maxSecretAge)
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
