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

// secretsManager reads a machine's credential with method external-secrets. Each value of Secrets.Manager has
// its own implementation.
type secretsManager interface {
	// readSecret logs in as the machine and returns the keys and values of the secret. An error of type
	// *endError is terminal. Every other error is transient, and the caller should retry after the returned
	// delay.
	readSecret(ctx context.Context) (secret map[string]any, retryAfter time.Duration, err error)

	close()
}

// openSecretsManager returns the configured secrets manager.
func (s *Service) openSecretsManager(secrets *guest.Secrets) (secretsManager, error) {
	switch secrets.Manager {
	case guest.SecretsVault:
		return openVault(secrets, s.identity, &s.redactor)
	default: // validateSecrets accepts the same values
		return nil, errors.New("unknown secrets.manager " + secrets.Manager)
	}
}

// fetchSecrets reads the credential from a secrets manager and stores it in cfg, where other methods have the
// credential from the cloud-init ISO. It does nothing if the method is not external-secrets.
func (s *Service) fetchSecrets(ctx context.Context, cfg *guest.Config) error {
	if cfg.Method != guest.MethodExternalSecrets {
		return nil
	}

	manager, err := s.openSecretsManager(cfg.Secrets)
	if err != nil {
		return newFailure(guest.ReasonConfigInvalid, "%w", err)
	}

	defer manager.close()

	secret, err := fetchWithRetry(ctx, s, fetchTarget{
		object: "the secret", reason: guest.ReasonSecretsUnavailable, failure: cfg.Secrets.Address + " returned no secret",
	}, manager.readSecret)
	if err != nil {
		return err
	}

	credential, missing, err := pickCredential(cfg.Secrets, secret)
	if err != nil {
		return err
	}

	credential.RegistrationURL = cmp.Or(credential.RegistrationURL, cfg.RegistrationURL)
	reason := guest.ReasonConfigInvalid

	if len(missing) > 0 { // if the credential is invalid, the cause can be a missing key
		reason = guest.ReasonSecretMissing
	}

	return s.useCredential(cfg, credential, reason, "secret "+cfg.Secrets.Path)
}

// pickCredential returns the credential in a secret, and the keys that the secret does not have. A key that
// the configuration names must exist. Of the default keys, at least one with a credential must exist. Errors
// do not contain values of the secret.
func pickCredential(secrets *guest.Secrets, secret map[string]any) (credential guest.Credential, missing []string, err error) {
	for field, target := range map[string]*string{
		keyJITConfig: &credential.JITConfig, keyRunnerToken: &credential.RunnerToken,
		keyRegistrationURL: &credential.RegistrationURL,
	} {
		key := cmp.Or(secrets.Keys[field], field)

		value, ok := secret[key]
		if !ok {
			if secrets.Keys[field] != "" {
				return credential, nil, newFailure(guest.ReasonSecretMissing, "secret %s has no key %q", secrets.Path, key)
			}

			missing = append(missing, key)

			continue
		}

		text, ok := value.(string)
		if *target = strings.TrimSpace(text); !ok || *target == "" {
			return credential, nil, newFailure(guest.ReasonSecretMissing, "secret %s: key %q is empty or not a string",
				secrets.Path, key)
		}
	}

	if credential.JITConfig == "" && credential.RunnerToken == "" {
		return credential, nil, newFailure(guest.ReasonSecretMissing, "secret %s has neither key %q nor %q", secrets.Path,
			cmp.Or(secrets.Keys[keyJITConfig], keyJITConfig), cmp.Or(secrets.Keys[keyRunnerToken], keyRunnerToken))
	}

	return credential, missing, nil
}
