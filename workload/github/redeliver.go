// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// maxRedelivered bounds the redeliveries that one call of Redeliver requests.
	maxRedelivered = 250
	// maxDeliveryPages bounds how far Redeliver looks back, in pages of 100 deliveries.
	maxDeliveryPages = 100
	// minRedeliveryInterval is the interval before a redelivery of the same delivery is requested
	// again, because GitHub needs time to deliver it. The interval doubles with each request.
	minRedeliveryInterval = 5 * time.Minute
	// deliveryRetention is how long GitHub stores deliveries.
	deliveryRetention = 72 * time.Hour
)

// webhook identifies the deliveries of one webhook and the client that can read them.
type webhook struct {
	caller

	path        string
	scope       scope
	requirement string
	// installationID selects the deliveries of one installation. 0 selects all deliveries.
	installationID int64
}

type listedHook struct {
	ID     int64 `json:"id"`
	Config struct {
		URL string `json:"url"`
	} `json:"config"`
}

type delivery struct {
	ID           int64     `json:"id"`
	GUID         string    `json:"guid"`
	DeliveredAt  time.Time `json:"delivered_at"`
	StatusCode   int       `json:"status_code"`
	Event        string    `json:"event"`
	Installation int64     `json:"installation_id"`
}

// Redeliver requests redeliveries of the workflow_job webhooks to target whose last delivery since
// then failed, oldest first, at most 250 per call. GitHub stores deliveries for three days and
// never redelivers one automatically
// (https://docs.github.com/webhooks/using-webhooks/handling-failed-webhook-deliveries).
//
// If a call does not request all redeliveries, because of a missing permission, a rate limit or the
// maximum, the next call requests the rest, even if its since is later. The interval between
// redeliveries of the same webhook doubles each time. If the webhook does not exist or is not
// visible to the credentials, the error has kind Rejected and names the required permission.
func (p *provider) Redeliver(ctx context.Context, target string, since time.Time) (int, error) {
	p.redeliveryMu.Lock()
	defer p.redeliveryMu.Unlock()

	if !p.redeliverSince.IsZero() && p.redeliverSince.Before(since) {
		since = p.redeliverSince
	}

	p.redeliverSince = since

	hook, err := p.findHook(ctx, target)
	if err != nil {
		return 0, err
	}

	failed, err := p.listFailedDeliveries(ctx, hook, since)
	if err != nil {
		return 0, err
	}

	count, err := p.requestRedeliveries(ctx, hook, failed[:min(len(failed), maxRedelivered)])
	if err == nil && len(failed) <= maxRedelivered {
		p.redeliverSince = time.Time{}
	}

	return count, err
}

// findHook returns the webhook whose URL is target. It searches the App's webhook, the repository's
// webhooks and the organization's webhooks, in this order.
func (p *provider) findHook(ctx context.Context, target string) (*webhook, error) {
	if p.app.client != nil {
		if hook, err := p.findAppHook(ctx, target); hook != nil || err != nil {
			return hook, err
		}
	}

	hookScope := p.urls.scope
	if hookScope.enterprise != "" {
		return nil, workload.NewRejected(ReasonHook, fmt.Sprintf("GitHub's API has no webhooks of %s: "+
			"the operator cannot request redeliveries, and polling finds the jobs of lost webhooks", hookScope))
	}

	hook, err := p.findScopeHook(ctx, hookScope, target)
	if err == nil && hook == nil {
		err = newHookNotFoundError(hookScope, target)
	}

	if hookScope.repo == "" || !workload.Is(err, workload.Rejected) {
		return hook, err
	}

	// Try the organization's webhooks too. The owner can be a user, who has no webhooks, and the
	// credentials may have no permission to read them.
	orgHook, orgErr := p.findScopeHook(ctx, scope{owner: hookScope.owner}, target)
	if orgHook != nil || orgErr != nil && !workload.Is(orgErr, workload.Rejected) {
		return orgHook, orgErr
	}

	return nil, err
}

// findAppHook returns the App's own webhook if its URL is target, and nil otherwise.
func (p *provider) findAppHook(ctx context.Context, target string) (*webhook, error) {
	call := request{class: classPoll, action: "get the GitHub App's webhook", path: "app/hook/config"}

	var config struct {
		URL string `json:"url"`
	}

	if _, err := p.app.send(ctx, call, &config); err != nil {
		if status, ok := responseStatus(err); ok && status == http.StatusNotFound {
			return nil, nil //nolint:nilnil // the App has no webhook
		}

		return nil, p.explain(call.action, "the GitHub App's own key", err)
	}

	if !isSameURL(config.URL, target) {
		return nil, nil //nolint:nilnil // the App's webhook has another URL
	}

	return &webhook{
		caller: p.app, path: "app/hook", scope: p.urls.scope, requirement: "the GitHub App's own key", installationID: p.installationID,
	}, nil
}

// findScopeHook returns the webhook of a repository or an organization whose URL is target, and nil
// if there is none.
func (p *provider) findScopeHook(ctx context.Context, hookScope scope, target string) (*webhook, error) {
	for page := 1; page <= maxPollPages; page++ {
		var hooks []listedHook

		call := request{class: classPoll, action: "list webhooks", path: hookScope.path() + "/hooks", query: pageQuery(page)}

		resp, err := p.send(ctx, call, &hooks)
		if err != nil {
			return nil, p.explainHook(hookScope, call.action, hookScope.hooksRequirement(), err)
		}

		for _, hook := range hooks {
			if isSameURL(hook.Config.URL, target) {
				return &webhook{
					caller: p.caller, scope: hookScope, requirement: hookScope.hooksRequirement(),
					path: hookScope.path() + "/hooks/" + strconv.FormatInt(hook.ID, 10),
				}, nil
			}
		}

		if resp.NextPage == 0 {
			break
		}
	}

	return nil, nil //nolint:nilnil // no webhook has this URL
}

// hooksRequirement returns the permission that reading and redelivering webhooks needs.
func (s scope) hooksRequirement() string {
	if s.repo == "" {
		return "the organization permission Webhooks: write (GitHub App or fine-grained token), " +
			"or the scope admin:org_hook (classic token)"
	}

	return "the repository permission Webhooks: write (GitHub App or fine-grained token), " +
		"or the scope admin:repo_hook (classic token)"
}

// explainHook is like explain, but it reports status 404 as a missing permission, because GitHub
// answers with 404 if the credentials may not read the webhooks.
func (p *provider) explainHook(target scope, action, requirement string, err error) error {
	if status, ok := responseStatus(err); ok && status == http.StatusNotFound {
		return workload.NewRejected(ReasonPermission,
			fmt.Sprintf("%s of %s: GitHub denied permission: grant %s", action, target, requirement))
	}

	return p.explainScope(target, action, requirement, err)
}

// listFailedDeliveries returns the last delivery of each event whose last delivery failed after since,
// oldest first.
func (p *provider) listFailedDeliveries(ctx context.Context, hook *webhook, since time.Time) ([]delivery, error) {
	var out []delivery

	isSeen := map[string]bool{}
	query := pageQuery(1)

	// The list is sorted newest first, so the first delivery of an event in the list is its last
	// one.
	for range maxDeliveryPages {
		var page []delivery

		call := request{class: classPoll, action: "list webhook deliveries", path: hook.path + "/deliveries", query: query}

		resp, err := hook.send(ctx, call, &page)
		if err != nil {
			return nil, p.explainHook(hook.scope, call.action, hook.requirement, err)
		}

		for _, attempt := range page {
			if attempt.DeliveredAt.Before(since) {
				resp.Cursor = "" // the deliveries of further pages are older

				continue
			}

			if !isSeen[attempt.GUID] && attempt.hasFailed() && hook.isForInstallation(attempt) {
				out = append(out, attempt)
			}

			isSeen[attempt.GUID] = true
		}

		if resp.Cursor == "" {
			break
		}

		query.Set("cursor", resp.Cursor)
	}

	slices.SortFunc(out, func(a, b delivery) int {
		return cmp.Or(a.DeliveredAt.Compare(b.DeliveredAt), cmp.Compare(a.ID, b.ID))
	})

	return out, nil
}

// hasFailed reports whether the delivery of a workflow_job webhook failed. It returns false for other webhooks.
func (d delivery) hasFailed() bool {
	return d.Event == eventJob && (d.StatusCode < http.StatusOK || d.StatusCode >= http.StatusMultipleChoices)
}

// isForInstallation reports whether a delivery is for the webhook's installation. The delivery list
// of an App contains the deliveries of all its installations.
func (w *webhook) isForInstallation(attempt delivery) bool {
	return w.installationID == 0 || attempt.Installation == w.installationID
}

// requestRedeliveries requests a redelivery of each delivery and returns the number of requests. It
// skips deliveries that GitHub cannot redeliver.
func (p *provider) requestRedeliveries(ctx context.Context, hook *webhook, failed []delivery) (int, error) {
	count := 0

	for _, attempt := range failed {
		// Providers with the same credential see the same deliveries.
		release, isFirst := hook.budget.claimRedelivery(hook.path + "/" + attempt.GUID)
		if !isFirst {
			continue
		}

		call := request{
			class: classPoll, action: "request a webhook redelivery", method: http.MethodPost,
			path: hook.path + "/deliveries/" + strconv.FormatInt(attempt.ID, 10) + "/attempts",
		}

		_, err := hook.send(ctx, call, nil)
		if status, ok := responseStatus(err); ok && status == http.StatusUnprocessableEntity {
			continue
		}

		if err != nil {
			release()

			return count, p.explainHook(hook.scope, call.action, hook.requirement, err)
		}

		count++
	}

	return count, nil
}

// isSameURL reports whether two webhook URLs are equal. It ignores a trailing slash and the case of
// scheme and host.
func isSameURL(a, b string) bool {
	first, errA := url.Parse(strings.TrimSpace(a))
	second, errB := url.Parse(strings.TrimSpace(b))

	if errA != nil || errB != nil {
		return false
	}

	return strings.EqualFold(first.Scheme, second.Scheme) && strings.EqualFold(first.Host, second.Host) &&
		strings.TrimRight(first.EscapedPath(), "/") == strings.TrimRight(second.EscapedPath(), "/") && first.RawQuery == second.RawQuery
}

// newHookNotFoundError returns the error of a scope that has no visible webhook with the URL
// target.
func newHookNotFoundError(hookScope scope, target string) error {
	return workload.NewRejected(ReasonHook, fmt.Sprintf(
		"find the webhook of %s to %s: it does not exist, or these credentials cannot read it, so the operator cannot request "+
			"redeliveries, and polling finds the jobs of lost webhooks; add the webhook, or set the URL in the GitHub App",
		hookScope, target))
}
