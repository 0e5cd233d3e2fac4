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

// limits are the budgets of all credentials in use: GitHub limits a credential, however
// many scopes and providers it serves. A budget goes with the last provider that has it.
type limits struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[budget]
}

// of gives the budget of what names a credential, which is kept as a digest alone. On nil
// it makes one that nobody shares.
func (l *limits) of(clk clock.PassiveClock, name ...string) *budget {
	if l == nil {
		return newBudget(clk)
	}

	key := sha256.Sum256([]byte(strings.Join(name, "\x00")))

	l.mu.Lock()
	defer l.mu.Unlock()

	if found := l.known[key].Value(); found != nil {
		return found
	}

	maps.DeleteFunc(l.known, func(_ [sha256.Size]byte, old weak.Pointer[budget]) bool { return old.Value() == nil })

	if l.known == nil {
		l.known = map[[sha256.Size]byte]weak.Pointer[budget]{}
	}

	made := newBudget(clk)
	l.known[key] = weak.Make(made)

	return made
}

// budgets gives the budget of an installation or token, and that of the App itself, whose
// calls GitHub counts apart; it is nil without one.
func (l *limits) budgets(clk clock.PassiveClock, api string, config *Settings) (own, app *budget) {
	if config.App == nil {
		return l.of(clk, api, "token", strings.TrimSpace(config.Token)), nil
	}

	id := strings.TrimSpace(config.App.AppID)

	return l.of(clk, api, "installation", id, strconv.FormatInt(config.App.InstallationID, 10)), l.of(clk, api, "app", id)
}
