// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// redactor replaces secrets in texts with "***". It keeps each secret forever, because a program can print a
// credential long after its use.
type redactor struct {
	mu        sync.RWMutex
	pairs     []string
	replacer  *strings.Replacer
	maxLength int
}

// minSecretLength is the minimum length of a secret in bytes. Redacting shorter texts would make the logs
// unreadable.
const minSecretLength = 4

// addSecrets adds secrets to redact. It ignores texts that are shorter than minSecretLength.
func (r *redactor) addSecrets(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, s := range secrets {
		if len(s) >= minSecretLength {
			r.pairs = append(r.pairs, s, "***")
			r.maxLength = max(r.maxLength, len(s))
		}
	}

	r.replacer = strings.NewReplacer(r.pairs...)
}

// addConfigSecrets adds all secrets of a configuration.
func (r *redactor) addConfigSecrets(c *guest.Config) {
	r.addSecrets(c.JITConfig, c.RunnerToken)

	if c.Report != nil {
		r.addSecrets(c.Report.Token)
	}

	if c.Callback != nil {
		r.addSecrets(c.Callback.Code)
	}

	if c.SPIFFE == nil {
		return
	}

	r.addSecrets(c.SPIFFE.JoinToken)

	if c.SPIFFE.DevID != nil {
		r.addSecrets(c.SPIFFE.DevID.Code)
	}
}

func (r *redactor) redact(text string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()

	if r.replacer == nil {
		return text
	}

	return r.replacer.Replace(text)
}

// maxSecretLength returns the length of the longest secret in bytes.
func (r *redactor) maxSecretLength() int {
	r.mu.RLock()
	defer r.mu.RUnlock()

	return r.maxLength
}
