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
	// perPage is the largest page size that the servers allow by default.
	perPage = 50
	// maxPages bounds the pages of one list.
	maxPages = 400
	// listTimeout bounds the time for all pages of a list. Each call has the provider's timeout
	// too.
	listTimeout = 2 * time.Minute
	// ownerLabelPrefix is the prefix of the label that identifies the operator that created a
	// runner.
	ownerLabelPrefix = "hf-op-"
)

var errTooManyPages = errors.New("the list has too many pages")

// listedRunner is a runner in the API of either server.
type listedRunner struct {
	ID int64 `json:"id"`
	// OwnerID and RepoID are set by Forgejo only. They are 0 for runners of the instance.
	OwnerID int64  `json:"owner_id"`
	RepoID  int64  `json:"repo_id"`
	Name    string `json:"name"`
	// Status is online or offline at Gitea, and active, idle or offline at Forgejo.
	Status      string  `json:"status"`
	Busy        bool    `json:"busy"`     // Gitea
	Disabled    bool    `json:"disabled"` // Gitea
	Description string  `json:"description"`
	Labels      []label `json:"labels"`
}

// label is a string in Forgejo's API, and an object with a name in Gitea's.
type label string

// UnmarshalJSON decodes both forms.
func (l *label) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, (*string)(l))
	}

	var object struct {
		Name string `json:"name"`
	}

	err := json.Unmarshal(data, &object)
	*l = label(object.Name)

	return err
}

// toRunner converts the runner. A disabled runner counts as offline, because it takes no jobs: it
// was busy when Deregister disabled it. The operator's ownership label is read from the description
// too, because Forgejo knows a runner's labels only after its program has connected.
func (r *listedRunner) toRunner() workload.Runner {
	out := workload.Runner{
		ID: strconv.FormatInt(r.ID, 10), Name: r.Name, Busy: r.Busy || r.Status == "active",
		Online: r.Status != "offline" && r.Status != "" && !r.Disabled,
	}

	hasOwnerLabel := false

	for _, label := range r.Labels {
		out.Labels = append(out.Labels, string(label))
		hasOwnerLabel = hasOwnerLabel || strings.HasPrefix(string(label), ownerLabelPrefix)
	}

	for word := range strings.FieldsSeq(r.Description) {
		if !hasOwnerLabel && strings.HasPrefix(word, ownerLabelPrefix) {
			out.Labels = append(out.Labels, word)
		}
	}

	return out
}

// fetchRunners reads all pages of the scope's runners.
func (p *provider) fetchRunners(ctx context.Context) ([]workload.Runner, error) {
	var out []workload.Runner

	for page, count := 1, 0; page <= maxPages; page++ {
		found, total, err := p.fetchRunnersPage(ctx, page)
		if err != nil {
			return nil, p.explain("list runners", err)
		}

		for i := range found {
			// Forgejo's list of the instance's runners can contain runners of organizations and
			// repositories.
			if p.scope == (scope{}) && (found[i].OwnerID != 0 || found[i].RepoID != 0) {
				continue
			}

			out = append(out, found[i].toRunner())
		}

		if count += len(found); len(found) == 0 || count >= total {
			return out, nil
		}
	}

	return nil, fmt.Errorf("list runners of %s: %w", p.scope, errTooManyPages)
}

// fetchRunnersPage returns one page and the total number of runners.
func (p *provider) fetchRunnersPage(ctx context.Context, page int) (runners []listedRunner, total int, err error) {
	path := fmt.Sprintf("%s/actions/runners?page=%d&limit=%d", p.scope.path(), page, perPage)

	if p.kind == kindGitea {
		var response struct {
			Runners []listedRunner `json:"runners"`
			Total   int            `json:"total_count"`
		}

		_, err := p.api.callAPI(ctx, http.MethodGet, path, nil, &response)
		if err == nil && response.Runners == nil {
			err = workload.ErrNoData
		}

		return response.Runners, response.Total, err
	}

	header, err := p.api.callAPI(ctx, http.MethodGet, path, nil, &runners)
	if err != nil {
		return nil, 0, err
	}

	total, err = strconv.Atoi(header.Get("X-Total-Count"))
	if err != nil {
		return runners, (page + 1) * perPage, nil //nolint:nilerr // continue until a page is empty
	}

	return runners, total, nil
}
