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
	// maxRedelivered bounds what one call of Redeliver asks for.
	maxRedelivered = 250
	// maxDeliveryPages bounds how far it looks back, in pages of 100 deliveries.
	maxDeliveryPages = 100
	// askedFor is how long a delivery that was asked for is left alone: it is on its way.
	// Each further time it is left alone for twice as long.
	askedFor = 5 * time.Minute
	// keptFor is how long GitHub keeps deliveries.
	keptFor = 72 * time.Hour
)

// webhook is where one hook's deliveries are, and who may see them.
type webhook struct {
	caller

	path  string
	where scope
	needs string
	// installation that deliveries are for; 0 means all.
	installation int64
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

// Redeliver asks again for the workflow_job webhooks to target whose last try since then
// failed, oldest first, at most 250 at a time. GitHub keeps deliveries for three days and
// never repeats one by itself
// (https://docs.github.com/webhooks/using-webhooks/handling-failed-webhook-deliveries).
// What a call leaves undone, for want of a right, because GitHub's limits ended it or there
// was more, the next one does, whatever its since. A webhook that fails again and again is
// asked for less and less. One that cannot be found or seen is an error of kind Rejected
// that names the permission.
func (p *provider) Redeliver(ctx context.Context, target string, since time.Time) (int, error) {
	p.redelivery.Lock()
	defer p.redelivery.Unlock()

	if !p.undone.IsZero() && p.undone.Before(since) {
		since = p.undone
	}

	p.undone = since

	hook, err := p.findHook(ctx, target)
	if err != nil {
		return 0, err
	}

	failed, err := p.failedDeliveries(ctx, hook, since)
	if err != nil {
		return 0, err
	}

	count, err := p.askAgain(ctx, hook, failed[:min(len(failed), maxRedelivered)])
	if err == nil && len(failed) <= maxRedelivered {
		p.undone = time.Time{}
	}

	return count, err
}

// findHook looks for the hook whose URL is target: the App's, the repository's, the
// organisation's.
func (p *provider) findHook(ctx context.Context, target string) (*webhook, error) {
	if p.app.client != nil {
		if hook, err := p.appHook(ctx, target); hook != nil || err != nil {
			return hook, err
		}
	}

	where := p.urls.scope
	if where.enterprise != "" {
		return nil, workload.Reject(ReasonHook, fmt.Sprintf("GitHub has no call for the webhooks of %s: "+
			"failed webhooks are not asked for again, and polling finds their jobs", where))
	}

	hook, err := p.scopeHook(ctx, where, target)
	if err == nil && hook == nil {
		err = errNoHooks(where, target)
	}

	if where.repo == "" || !workload.Is(err, workload.Rejected) {
		return hook, err
	}

	// A user has no hooks; an organisation's are looked at as far as that is permitted.
	above, errAbove := p.scopeHook(ctx, scope{owner: where.owner}, target)
	if above != nil || errAbove != nil && !workload.Is(errAbove, workload.Rejected) {
		return above, errAbove
	}

	return nil, err
}

// appHook gives the App's own webhook if it goes to target.
func (p *provider) appHook(ctx context.Context, target string) (*webhook, error) {
	call := request{class: spare, what: "reading the GitHub App's webhook", path: "app/hook/config"}

	var config struct {
		URL string `json:"url"`
	}

	if _, err := p.app.send(ctx, call, &config); err != nil {
		if status, ok := readStatus(err); ok && status == http.StatusNotFound {
			return nil, nil //nolint:nilnil // the App has no webhook
		}

		return nil, p.explain(call.what, "the GitHub App's own key", err)
	}

	if !sameURL(config.URL, target) {
		return nil, nil //nolint:nilnil // it goes elsewhere
	}

	return &webhook{
		caller: p.app, path: "app/hook", where: p.urls.scope, needs: "the GitHub App's own key", installation: p.installation,
	}, nil
}

// scopeHook gives the hook of a repository or an organisation that goes to target.
func (p *provider) scopeHook(ctx context.Context, where scope, target string) (*webhook, error) {
	for page := 1; page <= maxPollPages; page++ {
		var hooks []listedHook

		call := request{class: spare, what: "listing webhooks", path: where.path() + "/hooks", query: paged(page)}

		resp, err := p.send(ctx, call, &hooks)
		if err != nil {
			return nil, p.explainHook(where, call.what, where.needsHooks(), err)
		}

		for _, hook := range hooks {
			if sameURL(hook.Config.URL, target) {
				return &webhook{
					caller: p.caller, where: where, needs: where.needsHooks(),
					path: where.path() + "/hooks/" + strconv.FormatInt(hook.ID, 10),
				}, nil
			}
		}

		if resp.NextPage == 0 {
			break
		}
	}

	return nil, nil //nolint:nilnil // none of them
}

// needsHooks is what reading and repeating deliveries needs.
func (s scope) needsHooks() string {
	if s.repo == "" {
		return "the organization permission Webhooks: write (GitHub App or fine-grained token), " +
			"or the scope admin:org_hook (classic token)"
	}

	return "the repository permission Webhooks: write (GitHub App or fine-grained token), " +
		"or the scope admin:repo_hook (classic token)"
}

// explainHook is explain; what GitHub hides for want of a permission it answers with 404.
func (p *provider) explainHook(where scope, what, needs string, err error) error {
	if status, ok := readStatus(err); ok && status == http.StatusNotFound {
		return workload.Reject(ReasonPermission, fmt.Sprintf("%s of %s is not permitted: grant %s", what, where, needs))
	}

	return p.explainOf(where, what, needs, err)
}

// failedDeliveries gives the last tries of events that failed since then, oldest first.
func (p *provider) failedDeliveries(ctx context.Context, hook *webhook, since time.Time) ([]delivery, error) {
	var out []delivery

	last := map[string]bool{}
	query := paged(1)

	// The list begins with the newest, so that an event's last try comes first.
	for range maxDeliveryPages {
		var page []delivery

		call := request{class: spare, what: "listing deliveries of webhooks", path: hook.path + "/deliveries", query: query}

		resp, err := hook.send(ctx, call, &page)
		if err != nil {
			return nil, p.explainHook(hook.where, call.what, hook.needs, err)
		}

		for _, try := range page {
			if try.DeliveredAt.Before(since) {
				resp.Cursor = ""

				continue
			}

			if !last[try.GUID] && try.failed() && hook.serves(try) {
				out = append(out, try)
			}

			last[try.GUID] = true
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

func (d delivery) failed() bool {
	return d.Event == eventJob && (d.StatusCode < http.StatusOK || d.StatusCode >= http.StatusMultipleChoices)
}

// serves tells whether a delivery is for the installation: an App's list is that of all of
// its installations.
func (w *webhook) serves(try delivery) bool {
	return w.installation == 0 || try.Installation == w.installation
}

// askAgain asks for each, and gives how many it asked for. One that GitHub cannot deliver
// again does not keep the others.
func (p *provider) askAgain(ctx context.Context, hook *webhook, failed []delivery) (int, error) {
	count := 0

	for _, try := range failed {
		// Providers of one credential see the same deliveries.
		release, first := hook.budget.claim(hook.path + "/" + try.GUID)
		if !first {
			continue
		}

		call := request{
			class: spare, what: "asking for a webhook again", method: http.MethodPost,
			path: hook.path + "/deliveries/" + strconv.FormatInt(try.ID, 10) + "/attempts",
		}

		_, err := hook.send(ctx, call, nil)
		if status, ok := readStatus(err); ok && status == http.StatusUnprocessableEntity {
			continue
		}

		if err != nil {
			release()

			return count, p.explainHook(hook.where, call.what, hook.needs, err)
		}

		count++
	}

	return count, nil
}

// sameURL tells whether two URLs of webhooks are one.
func sameURL(a, b string) bool {
	first, errA := url.Parse(strings.TrimSpace(a))
	second, errB := url.Parse(strings.TrimSpace(b))

	if errA != nil || errB != nil {
		return false
	}

	return strings.EqualFold(first.Scheme, second.Scheme) && strings.EqualFold(first.Host, second.Host) &&
		strings.TrimRight(first.EscapedPath(), "/") == strings.TrimRight(second.EscapedPath(), "/") && first.RawQuery == second.RawQuery
}

// errNoHooks says that there is nothing to ask for webhooks.
func errNoHooks(where scope, target string) error {
	return workload.Reject(ReasonHook, fmt.Sprintf(
		"no webhook of %s to %s is known to these credentials: failed webhooks are not asked for again, and polling finds their jobs; "+
			"add the webhook there, or set it as the URL of the GitHub App", where, target))
}
