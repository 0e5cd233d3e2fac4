// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// redactor takes credentials out of texts. What it was told once it does not forget: a
// program may write of a credential long after its use.
type redactor struct {
	mu       sync.RWMutex
	pairs    []string
	replacer *strings.Replacer
	most     int
}

// shortest is the length below which a text is no credential: all logs would be full of
// stars.
const shortest = 4

// hide adds secrets.
func (r *redactor) hide(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, s := range secrets {
		if len(s) >= shortest {
			r.pairs = append(r.pairs, s, "***")
			r.most = max(r.most, len(s))
		}
	}

	r.replacer = strings.NewReplacer(r.pairs...)
}

// hideAll adds the secrets of a configuration.
func (r *redactor) hideAll(c *guest.Config) {
	r.hide(c.JITConfig, c.RunnerToken)

	if c.Report != nil {
		r.hide(c.Report.Token)
	}

	if c.Callback != nil {
		r.hide(c.Callback.Code)
	}

	if c.SPIFFE == nil {
		return
	}

	r.hide(c.SPIFFE.JoinToken)

	if c.SPIFFE.DevID != nil {
		r.hide(c.SPIFFE.DevID.Code)
	}
}

func (r *redactor) clean(text string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()

	if r.replacer == nil {
		return text
	}

	return r.replacer.Replace(text)
}

// longest is the longest secret in bytes.
func (r *redactor) longest() int {
	r.mu.RLock()
	defer r.mu.RUnlock()

	return r.most
}
