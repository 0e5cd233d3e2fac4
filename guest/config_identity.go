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

// defaultTPM is the TPM's device by way of the kernel's resource manager.
const defaultTPM = "/dev/tpmrm0"

// Keys of a secret, by the credential's fields that they hold.
const (
	keyJITConfig       = "jit_config"
	keyRunnerToken     = "runner_token"
	keyRegistrationURL = "registration_url"
)

func secretKeys() []string { return []string{keyJITConfig, keyRunnerToken, keyRegistrationURL} }

func attests(c *guest.Config) bool { return c.SPIFFE != nil && c.SPIFFE.Enabled }

// setIdentityDefaults fills in what the parts about identity leave open.
func setIdentityDefaults(c *guest.Config) {
	if attests(c) {
		c.SPIFFE.Method = cmp.Or(c.SPIFFE.Method, guest.AttestJoinToken)
		c.SPIFFE.AgentPath = cmp.Or(c.SPIFFE.AgentPath, guest.AgentPath)

		if c.SPIFFE.Method == guest.AttestTPM {
			c.SPIFFE.TPMDevice = cmp.Or(c.SPIFFE.TPMDevice, defaultTPM)
		}
	}

	if c.Secrets != nil {
		c.Secrets.Manager = cmp.Or(c.Secrets.Manager, guest.SecretsVault)
		c.Secrets.Auth = cmp.Or(c.Secrets.Auth, guest.SecretsAuthJWT)
		c.Secrets.AuthMount = strings.Trim(cmp.Or(c.Secrets.AuthMount, c.Secrets.Auth), "/")
		c.Secrets.Audience = cmp.Or(c.Secrets.Audience, c.Secrets.Manager)
	}
}

// joinToken is what may stand in the agent's configuration without any quoting.
var joinToken = regexp.MustCompile(`^[A-Za-z0-9._~-]{1,256}$`)

// validateSPIFFE checks what attestation needs.
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
		return errors.New("spiffe.trust_bundle holds no certificate in PEM")
	case !path.IsAbs(c.AgentPath):
		return fmt.Errorf("spiffe.agent_path %q must be an absolute path", c.AgentPath)
	}

	return validateAttestor(c)
}

// validateAttestor checks what one method needs.
func validateAttestor(c *guest.SPIFFE) error {
	switch c.Method {
	case guest.AttestJoinToken:
		if !joinToken.MatchString(c.JoinToken) {
			return errors.New("spiffe.join_token is missing or has characters that no join token has")
		}
	case guest.AttestTPM:
		switch {
		case !path.IsAbs(c.TPMDevice):
			return fmt.Errorf("spiffe.tpm_device %q must be an absolute path", c.TPMDevice)
		case c.JoinToken != "":
			return errors.New("spiffe.join_token is of no use with method tpm: leave it out")
		case c.DevID == nil:
			return errors.New("spiffe.devid is missing: method tpm needs it")
		case c.DevID.Code == "":
			return errors.New("spiffe.devid.code is missing")
		}

		return validateEndpoint("spiffe.devid.url", c.DevID.URL)
	default:
		return fmt.Errorf("spiffe.method %q is not known to this bootstrap service: use %s or %s",
			c.Method, guest.AttestJoinToken, guest.AttestTPM)
	}

	return nil
}

// secretPath is a path of the manager's HTTP API.
var secretPath = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]*$`)

// validateSecrets checks what method external-secrets needs. Where the runner registers to
// is no secret, and may be given.
func validateSecrets(c *guest.Config) error {
	from := c.Secrets
	if from == nil {
		return fmt.Errorf("secrets is missing: method %s needs it", c.Method)
	}

	has := c.Credential()
	has.RegistrationURL = ""

	if err := noCredential(c, has); err != nil {
		return err
	}

	switch {
	case !attests(c):
		return fmt.Errorf("method %s needs an identity: enable spiffe", c.Method)
	case from.Manager != guest.SecretsVault:
		return fmt.Errorf("secrets.manager %q is not known to this bootstrap service: use %s", from.Manager, guest.SecretsVault)
	case from.Auth != guest.SecretsAuthJWT && from.Auth != guest.SecretsAuthCert:
		return fmt.Errorf("secrets.auth %q is not known to this bootstrap service: use %s or %s",
			from.Auth, guest.SecretsAuthJWT, guest.SecretsAuthCert)
	case from.Auth == guest.SecretsAuthJWT && from.Role == "":
		return errors.New("secrets.role is missing: auth jwt needs it")
	case !secretPath.MatchString(from.Path) || strings.Contains(from.Path, ".."):
		return fmt.Errorf("secrets.path %q must be a path such as secret/data/runners/team-a", from.Path)
	case !secretPath.MatchString(from.AuthMount) || strings.Contains(from.AuthMount, ".."):
		return fmt.Errorf("secrets.auth_mount %q must be a path such as jwt", from.AuthMount)
	}

	for field, key := range from.Keys {
		if !slices.Contains(secretKeys(), field) || key == "" {
			return fmt.Errorf("secrets.keys can name %s, each with the name of a key", strings.Join(secretKeys(), ", "))
		}
	}

	return validateEndpoint("secrets.address", from.Address)
}
