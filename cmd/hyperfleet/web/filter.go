// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
)

// filterFields are the values of a row that a filter compares with its query.
type filterFields struct {
	// states are all names of the state of a row.
	states []string
	// text has the words that a search finds.
	text string
	// pool is the pool of the row, as NAMESPACE/NAME.
	pool string
}

// filter selects rows of a list by the query of a URL, so that links to filtered lists can be shared: state has
// names of states separated by commas, pool is NAMESPACE/NAME, and q has words.
type filter struct {
	query url.Values
	// Path is the path of the page. AllPoolsURL is the URL without the pool. States are links to the rows of each
	// state.
	Path, Search, State, Pool, AllPoolsURL string
	States                                 []choice
	// Active is true if the filter does not select all rows.
	Active bool
}

// choice is a link that filters a list. Count is the number of rows in the filtered list.
type choice struct {
	State, URL string
	Count      int
	Chosen     bool
}

// newFilter returns the filter of a request.
func newFilter(r *http.Request) *filter {
	query := r.URL.Query()

	out := &filter{
		query: query, Path: r.URL.Path,
		Search: strings.TrimSpace(query.Get("q")), State: query.Get("state"), Pool: query.Get("pool"),
	}
	out.AllPoolsURL = out.url("pool", "")
	out.Active = out.Search+out.State+out.Pool != ""

	return out
}

// selectRows returns the rows that a filter selects. It adds a link to the filter for each of the given states, and
// for the selected state if it is another one.
func selectRows[R any](f *filter, rows []R, states []string, describe func(R) filterFields) []R {
	chosen := strings.Split(f.State, ",")
	count := map[string]int{}
	out := []R{}

	for _, row := range rows {
		fields := describe(row)
		if f.Pool != "" && f.Pool != fields.pool || !live.ContainsWords(fields.text, f.Search) {
			continue
		}

		for _, state := range append([]string{""}, states...) {
			if state == "" || slices.Contains(fields.states, state) {
				count[state]++
			}
		}

		if f.State == "" || slices.ContainsFunc(chosen, func(s string) bool { return slices.Contains(fields.states, s) }) {
			out = append(out, row)
		}
	}

	if !slices.Contains(states, f.State) && f.State != "" {
		states, count[f.State] = append(slices.Clip(states), f.State), len(out)
	}

	for _, state := range append([]string{""}, states...) {
		f.States = append(f.States, choice{State: state, URL: f.url("state", state), Count: count[state], Chosen: state == f.State})
	}

	return out
}

// url returns the URL of the list with one key of the query replaced. It leaves out the page, which belongs to
// the replaced query, and keys with an empty value.
func (f *filter) url(key, value string) string {
	out := url.Values{}

	for _, name := range []string{"state", "pool", "q"} {
		if old := f.query.Get(name); old != "" {
			out.Set(name, old)
		}
	}

	out.Set(key, value)

	if value == "" {
		out.Del(key)
	}

	if len(out) == 0 {
		return f.Path
	}

	return f.Path + "?" + out.Encode()
}

// stateURL returns the URL of a list with the rows of one state, and of one pool if its namespace and its name
// are given.
func stateURL(path, state string, pool ...string) string {
	query := url.Values{"state": {state}}
	if len(pool) > 0 {
		query.Set("pool", strings.Join(pool, "/"))
	}

	return path + "?" + query.Encode()
}

// readyStates returns the names of the state of an object with a condition Ready.
func readyStates(ready live.Ready) []string {
	if ready.State() == live.StateReady {
		return []string{live.StateReady}
	}

	return []string{ready.State(), live.StateNotReady}
}

// phaseStates returns the names of the state of an object with a condition Ready and a phase. An object in the phase
// Ready is only Ready if its condition is.
func phaseStates(ready live.Ready, phase string) []string {
	out := readyStates(ready)
	if phase != live.StateReady {
		out = append(out, cmp.Or(phase, "Pending"))
	}

	return out
}
