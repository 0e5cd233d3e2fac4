// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// perPage is the most that the servers give by default.
	perPage = 50
	// maxPages bounds a listing.
	maxPages = 400
	// listTimeout bounds a whole listing; each of its calls has the provider's timeout.
	listTimeout = 2 * time.Minute
	// markPrefix begins the label by which an operator knows its own runners.
	markPrefix = "hf-op-"
)

var errEndless = errors.New("the listing does not end")

// listedRunner is a runner as either server tells it.
type listedRunner struct {
	ID int64 `json:"id"`
	// OwnerID and RepoID are of Forgejo, 0 for runners of the instance.
	OwnerID int64  `json:"owner_id"`
	RepoID  int64  `json:"repo_id"`
	Name    string `json:"name"`
	// Status is online or offline at Gitea; active, idle or offline at Forgejo.
	Status      string  `json:"status"`
	Busy        bool    `json:"busy"`     // Gitea
	Disabled    bool    `json:"disabled"` // Gitea
	Description string  `json:"description"`
	Labels      []label `json:"labels"`
}

// label is a text at Forgejo, and an object with a name at Gitea.
type label string

// UnmarshalJSON reads either.
func (l *label) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		return json.Unmarshal(text, (*string)(l))
	}

	var object struct {
		Name string `json:"name"`
	}

	err := json.Unmarshal(text, &object)
	*l = label(object.Name)

	return err
}

// runner counts a disabled one as offline, for it takes no job: it is one that was to be
// removed and was busy. The operator's mark is in the description, too: Forgejo knows a
// runner's labels only once its program has told them.
func (r *listedRunner) runner() workload.Runner {
	out := workload.Runner{
		ID: strconv.FormatInt(r.ID, 10), Name: r.Name, Busy: r.Busy || r.Status == "active",
		Online: r.Status != "offline" && r.Status != "" && !r.Disabled,
	}

	marked := false

	for _, one := range r.Labels {
		out.Labels = append(out.Labels, string(one))
		marked = marked || strings.HasPrefix(string(one), markPrefix)
	}

	for word := range strings.FieldsSeq(r.Description) {
		if !marked && strings.HasPrefix(word, markPrefix) {
			out.Labels = append(out.Labels, word)
		}
	}

	return out
}

// listRunners pages through the runners of the scope.
func (p *provider) listRunners(ctx context.Context) ([]workload.Runner, error) {
	var out []workload.Runner

	for page, count := 1, 0; page <= maxPages; page++ {
		found, total, err := p.runnersPage(ctx, page)
		if err != nil {
			return nil, p.explain("listing runners", err)
		}

		for i := range found {
			// Forgejo's list of the instance may tell those of others as well.
			if p.where == (scope{}) && (found[i].OwnerID != 0 || found[i].RepoID != 0) {
				continue
			}

			out = append(out, found[i].runner())
		}

		if count += len(found); len(found) == 0 || count >= total {
			return out, nil
		}
	}

	return nil, fmt.Errorf("list runners of %s: %w", p.where, errEndless)
}

// runnersPage gives a page, and how many runners there are.
func (p *provider) runnersPage(ctx context.Context, page int) ([]listedRunner, int, error) {
	path := fmt.Sprintf("%s/actions/runners?page=%d&limit=%d", p.where.path(), page, perPage)

	if p.kind == kindGitea {
		var said struct {
			Runners []listedRunner `json:"runners"`
			Total   int            `json:"total_count"`
		}

		_, err := p.api.api(ctx, http.MethodGet, path, nil, &said)

		return said.Runners, said.Total, err
	}

	var said []listedRunner

	header, err := p.api.api(ctx, http.MethodGet, path, nil, &said)
	if err != nil {
		return nil, 0, err
	}

	total, err := strconv.Atoi(header.Get("X-Total-Count"))
	if err != nil {
		return said, (page + 1) * perPage, nil //nolint:nilerr // goes on until a page is empty
	}

	return said, total, nil
}
