// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// defaultTPMDevice is the TPM's device through the kernel's resource manager.
const defaultTPMDevice = "/dev/tpmrm0"

// Default keys of a secret for the fields of a credential.
const (
	keyJITConfig       = "jit_config"
	keyRunnerToken     = "runner_token"
	keyRegistrationURL = "registration_url"
)

func secretKeys() []string { return []string{keyJITConfig, keyRunnerToken, keyRegistrationURL} }

func isAttestationEnabled(c *guest.Config) bool { return c.SPIFFE != nil && c.SPIFFE.Enabled }

// setIdentityDefaults sets the defaults of the fields spiffe and secrets.
func setIdentityDefaults(c *guest.Config) {
	if isAttestationEnabled(c) {
		c.SPIFFE.Method = cmp.Or(c.SPIFFE.Method, guest.AttestJoinToken)
		c.SPIFFE.AgentPath = cmp.Or(c.SPIFFE.AgentPath, guest.AgentPath)

		if c.SPIFFE.Method == guest.AttestTPM {
			c.SPIFFE.TPMDevice = cmp.Or(c.SPIFFE.TPMDevice, defaultTPMDevice)
		}
	}

	if c.Secrets != nil {
		c.Secrets.Manager = cmp.Or(c.Secrets.Manager, guest.SecretsVault)
		c.Secrets.Auth = cmp.Or(c.Secrets.Auth, guest.SecretsAuthJWT)
		c.Secrets.AuthMount = strings.Trim(cmp.Or(c.Secrets.AuthMount, c.Secrets.Auth), "/")
		c.Secrets.Audience = cmp.Or(c.Secrets.Audience, c.Secrets.Manager)
	}
}

// joinTokenPattern matches join tokens that need no quoting in the agent's configuration.
var joinTokenPattern = regexp.MustCompile(`^[A-Za-z0-9._~-]{1,256}$`)

// validateSPIFFE checks the fields that attestation requires.
func validateSPIFFE(c *guest.SPIFFE) error {
	if c == nil || !c.Enabled {
		return nil
	}

	domain, err := spiffeid.TrustDomainFromString(c.TrustDomain)
	if err != nil || domain.Name() != c.TrustDomain {
		return fmt.Errorf("spiffe.trust_domain %q is not a trust domain such as hyperfleet.io", c.TrustDomain)
	}

	if id, err := spiffeid.FromString(c.SPIFFEID); err != nil || !id.MemberOf(domain) {
		return fmt.Errorf("spiffe.spiffe_id %q is not a SPIFFE ID of trust domain %s", c.SPIFFEID, c.TrustDomain)
	}

	if host, port, err := net.SplitHostPort(c.ServerAddress); err != nil || host == "" || port == "" {
		return fmt.Errorf("spiffe.server_address %q must be host:port", c.ServerAddress)
	}

	switch {
	case !x509.NewCertPool().AppendCertsFromPEM([]byte(c.TrustBundle)):
		return errors.New("spiffe.trust_bundle contains no certificate in PEM")
	case !path.IsAbs(c.AgentPath):
		return fmt.Errorf("spiffe.agent_path %q must be an absolute path", c.AgentPath)
	}

	return validateAttestor(c)
}

// validateAttestor checks the fields that the attestation method requires.
func validateAttestor(c *guest.SPIFFE) error {
	switch c.Method {
	case guest.AttestJoinToken:
		if !joinTokenPattern.MatchString(c.JoinToken) {
			return errors.New("spiffe.join_token is missing or is not a valid join token")
		}
	case guest.AttestTPM:
		switch {
		case !path.IsAbs(c.TPMDevice):
			return fmt.Errorf("spiffe.tpm_device %q must be an absolute path", c.TPMDevice)
		case c.JoinToken != "":
			return errors.New("spiffe.join_token is not used by method tpm: remove it")
		case c.DevID == nil:
			return errors.New("spiffe.devid is missing: method tpm requires it")
		case c.DevID.Code == "":
			return errors.New("spiffe.devid.code is missing")
		}

		return validateEndpoint("spiffe.devid.url", c.DevID.URL)
	default:
		return fmt.Errorf("this bootstrap service does not support spiffe.method %q: use %s or %s",
			c.Method, guest.AttestJoinToken, guest.AttestTPM)
	}

	return nil
}

// secretPathPattern matches paths of the secrets manager's HTTP API.
var secretPathPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]*$`)

// validateSecrets checks the fields that method external-secrets requires. The configuration may contain the
// registration URL, because it is not a secret.
func validateSecrets(c *guest.Config) error {
	secrets := c.Secrets
	if secrets == nil {
		return fmt.Errorf("secrets is missing: method %s requires it", c.Method)
	}

	credential := c.Credential()
	credential.RegistrationURL = ""

	if err := rejectCredential(c, credential); err != nil {
		return err
	}

	switch {
	case !isAttestationEnabled(c):
		return fmt.Errorf("method %s requires an identity: enable spiffe", c.Method)
	case secrets.Manager != guest.SecretsVault:
		return fmt.Errorf("this bootstrap service does not support secrets.manager %q: use %s", secrets.Manager, guest.SecretsVault)
	case secrets.Auth != guest.SecretsAuthJWT && secrets.Auth != guest.SecretsAuthCert:
		return fmt.Errorf("this bootstrap service does not support secrets.auth %q: use %s or %s",
			secrets.Auth, guest.SecretsAuthJWT, guest.SecretsAuthCert)
	case secrets.Auth == guest.SecretsAuthJWT && secrets.Role == "":
		return errors.New("secrets.role is missing: auth jwt requires it")
	case !secretPathPattern.MatchString(secrets.Path) || strings.Contains(secrets.Path, ".."):
		return fmt.Errorf("secrets.path %q must be a path such as secret/data/runners/team-a", secrets.Path)
	case !secretPathPattern.MatchString(secrets.AuthMount) || strings.Contains(secrets.AuthMount, ".."):
		return fmt.Errorf("secrets.auth_mount %q must be a path such as jwt", secrets.AuthMount)
	}

	for field, key := range secrets.Keys {
		if !slices.Contains(secretKeys(), field) || key == "" {
			return fmt.Errorf("secrets.keys may only set %s, each to the name of a key", strings.Join(secretKeys(), ", "))
		}
	}

	return validateEndpoint("secrets.address", secrets.Address)
}
