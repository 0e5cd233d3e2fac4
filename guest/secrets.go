// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// secretsManager is where a machine gets its credential with method external-secrets. One per
// value of Secrets.Manager.
type secretsManager interface {
	// read logs in as the machine and reads the secret: its keys and what they hold. An *end
	// is the manager's last word; after any other error another try may help, after as long
	// as the manager says.
	read(ctx context.Context) (map[string]any, time.Duration, error)

	close()
}

// openSecrets gives the configured secrets manager.
func (s *Service) openSecrets(from *guest.Secrets) (secretsManager, error) {
	switch from.Manager {
	case guest.SecretsVault:
		return openVault(from, s.identity, &s.redact)
	default: // validateSecrets knows the same ones
		return nil, errors.New("secrets.manager " + from.Manager + " is not known")
	}
}

// fetchSecrets gets the credential from a secrets manager, with method external-secrets, and
// puts it where the cloud-init ISO has it with other methods.
func (s *Service) fetchSecrets(ctx context.Context, cfg *guest.Config) error {
	if cfg.Method != guest.MethodExternalSecrets {
		return nil
	}

	manager, err := s.openSecrets(cfg.Secrets)
	if err != nil {
		return failed(guest.ReasonConfigInvalid, "%w", err)
	}

	defer manager.close()

	secret, err := insist(ctx, s, persistence{
		what: "the secret", reason: guest.ReasonSecretsUnavailable, lacks: cfg.Secrets.Address + " gave no secret",
	}, manager.read)
	if err != nil {
		return err
	}

	credential, lacks, err := pickCredential(cfg.Secrets, secret)
	if err != nil {
		return err
	}

	credential.RegistrationURL = cmp.Or(credential.RegistrationURL, cfg.RegistrationURL)
	reason := guest.ReasonConfigInvalid

	if len(lacks) > 0 { // what the platform needs may be among them
		reason = guest.ReasonSecretMissing
	}

	return s.accept(cfg, credential, reason, "secret "+cfg.Secrets.Path)
}

// pickCredential takes the credential out of a secret, and tells which keys that one lacks. A
// key that was named must be there; of those that go by default, one that is a credential.
// Nothing of what the secret holds gets into an error.
func pickCredential(from *guest.Secrets, secret map[string]any) (credential guest.Credential, lacks []string, err error) {
	for field, into := range map[string]*string{
		keyJITConfig: &credential.JITConfig, keyRunnerToken: &credential.RunnerToken,
		keyRegistrationURL: &credential.RegistrationURL,
	} {
		key := cmp.Or(from.Keys[field], field)

		held, there := secret[key]
		if !there {
			if from.Keys[field] != "" {
				return credential, nil, failed(guest.ReasonSecretMissing, "secret %s has no key %q", from.Path, key)
			}

			lacks = append(lacks, key)

			continue
		}

		text, ok := held.(string)
		if *into = strings.TrimSpace(text); !ok || *into == "" {
			return credential, nil, failed(guest.ReasonSecretMissing, "secret %s: key %q holds no text", from.Path, key)
		}
	}

	if credential.JITConfig == "" && credential.RunnerToken == "" {
		return credential, nil, failed(guest.ReasonSecretMissing, "secret %s has neither key %q nor %q", from.Path,
			cmp.Or(from.Keys[keyJITConfig], keyJITConfig), cmp.Or(from.Keys[keyRunnerToken], keyRunnerToken))
	}

	return credential, lacks, nil
}
