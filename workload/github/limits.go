// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/sha256"
	"maps"
	"strconv"
	"strings"
	"sync"
	"weak"

	"k8s.io/utils/clock"
)

// budgetRegistry contains the budgets of all credentials in use. GitHub limits a credential,
// however many scopes and providers use it. A budget is garbage-collected after the last provider
// that uses it.
type budgetRegistry struct {
	mu      sync.Mutex
	budgets map[[sha256.Size]byte]weak.Pointer[budget]
}

// budgetFor returns the budget of a credential. The registry stores only a digest of the names that
// identify the credential. For a nil registry it returns a new budget that is not shared.
func (r *budgetRegistry) budgetFor(clk clock.PassiveClock, name ...string) *budget {
	if r == nil {
		return newBudget(clk)
	}

	key := sha256.Sum256([]byte(strings.Join(name, "\x00")))

	r.mu.Lock()
	defer r.mu.Unlock()

	if found := r.budgets[key].Value(); found != nil {
		return found
	}

	maps.DeleteFunc(r.budgets, func(_ [sha256.Size]byte, old weak.Pointer[budget]) bool { return old.Value() == nil })

	if r.budgets == nil {
		r.budgets = map[[sha256.Size]byte]weak.Pointer[budget]{}
	}

	created := newBudget(clk)
	r.budgets[key] = weak.Make(created)

	return created
}

// credentialBudgets returns the budget of an installation or token, and the budget of the App
// itself, whose calls GitHub counts separately. The App's budget is nil if no App is used.
func (r *budgetRegistry) credentialBudgets(
	clk clock.PassiveClock, api string, config *Settings,
) (scopeBudget, appBudget *budget) {
	if config.App == nil {
		return r.budgetFor(clk, api, "token", strings.TrimSpace(config.Token)), nil
	}

	id := strings.TrimSpace(config.App.AppID)

	scopeBudget = r.budgetFor(clk, api, "installation", id, strconv.FormatInt(config.App.InstallationID, 10))

	return scopeBudget, r.budgetFor(clk, api, "app", id)
}
