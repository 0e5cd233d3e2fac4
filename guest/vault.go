// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	vaultapi "github.com/hashicorp/vault/api"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// vault reads secrets from HashiCorp Vault or OpenBao (https://developer.hashicorp.com/vault/api-docs,
// auth/jwt, auth/cert and secret/kv).
type vault struct {
	secrets    *guest.Secrets
	identity   *identity
	redactor   *redactor
	client     *vaultapi.Client
	httpClient *http.Client
	// retryAfter is the delay from the header Retry-After of Vault's last response.
	retryAfter time.Duration
}

// revokeTimeout limits the revocation of a token.
const revokeTimeout = 5 * time.Second

// openVault creates the client of the secrets manager. The client does not log in yet.
func openVault(secrets *guest.Secrets, id *identity, redactor *redactor) (*vault, error) {
	// "secrets" is the configuration field that errors name.
	client, err := newOperatorClient("secrets", secrets.CABundle, fetchTimeout)
	if err != nil {
		return nil, err
	}

	if transport, ok := client.Transport.(*http.Transport); ok && secrets.Auth == guest.SecretsAuthCert {
		transport.TLSClientConfig.GetClientCertificate = id.clientCertificate
	}

	// fetchWithRetry retries, so the client must not. VAULT_TOKEN and VAULT_NAMESPACE are ignored, because other
	// programs may have set them for themselves.
	apiClient, err := vaultapi.NewClient(&vaultapi.Config{Address: secrets.Address, HttpClient: client, MaxRetries: 0})
	if err != nil {
		return nil, fmt.Errorf("secrets.address: %w", err)
	}

	apiClient.ClearToken()
	apiClient.ClearNamespace()

	if secrets.Namespace != "" {
		apiClient.SetNamespace(secrets.Namespace)
	}

	out := &vault{secrets: secrets, identity: id, redactor: redactor, httpClient: client}
	out.client = apiClient.WithResponseCallbacks(func(r *vaultapi.Response) { out.retryAfter = parseRetryAfter(r.Header) })

	return out, nil
}

func (v *vault) close() { v.httpClient.CloseIdleConnections() }

// readSecret logs in, reads the secret and revokes the token of the login again.
func (v *vault) readSecret(ctx context.Context) (data map[string]any, retryAfter time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()

	v.retryAfter = 0

	token, err := v.login(ctx)
	if err != nil {
		return nil, v.retryAfter, err
	}

	v.client.SetToken(token)

	defer v.revoke(ctx)

	secret, err := v.client.Logical().ReadWithContext(ctx, v.secrets.Path)
	if err != nil {
		return nil, v.retryAfter, v.classifyError("read "+v.secrets.Path, err)
	}

	data, err = v.extractData(secret)

	return data, 0, err
}

// login returns a token for the machine's identity.
func (v *vault) login(ctx context.Context) (string, error) {
	body := map[string]any{}

	switch v.secrets.Auth {
	case guest.SecretsAuthJWT:
		token, err := v.identity.fetchJWT(ctx, v.secrets.Audience)
		if err != nil {
			return "", err
		}

		v.redactor.addSecrets(token)
		body["role"], body["jwt"] = v.secrets.Role, token
	case guest.SecretsAuthCert:
		if v.secrets.Role != "" {
			body["name"] = v.secrets.Role
		}
	}

	operation := fmt.Sprintf("log in by %s as role %q", v.secrets.AuthMount, v.secrets.Role)

	got, err := v.client.Logical().WriteWithContext(ctx, "auth/"+v.secrets.AuthMount+"/login", body)
	if err != nil {
		return "", v.classifyError(operation, err)
	}

	if got == nil || got.Auth == nil || got.Auth.ClientToken == "" {
		return "", newFailure(guest.ReasonSecretsRefused, "%s: the secrets manager returned no token: the login must not "+
			"require another factor", operation)
	}

	v.redactor.addSecrets(got.Auth.ClientToken)

	return got.Auth.ClientToken, nil
}

// revoke revokes the token. It ignores errors, e.g. if the role has no permission for this, because the token
// expires anyway.
func (v *vault) revoke(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()

	retryAfter := v.retryAfter
	_ = v.client.Auth().Token().RevokeSelfWithContext(ctx, "")
	v.retryAfter = retryAfter // keeps the delay of the response before the revocation

	v.client.ClearToken()
}

// extractData returns the keys and values of a secret. In KV version 2, these are in "data", next to "metadata".
func (v *vault) extractData(secret *vaultapi.Secret) (map[string]any, error) {
	if secret == nil {
		return nil, newFailure(guest.ReasonSecretMissing, "there is no secret at %s", v.secrets.Path)
	}

	metadata, isVersioned := secret.Data["metadata"].(map[string]any)
	if _, hasVersion := metadata["version"]; isVersioned && hasVersion {
		data, ok := secret.Data["data"].(map[string]any)
		if !ok {
			return nil, newFailure(guest.ReasonSecretMissing, "the last version of secret %s was deleted", v.secrets.Path)
		}

		return data, nil
	}

	if len(secret.Data) == 0 { // e.g. a path of KV version 2 without its data/
		return nil, newFailure(guest.ReasonSecretMissing, "there is no secret at %s: %s",
			v.secrets.Path, strings.Join(secret.Warnings, "; "))
	}

	return secret.Data, nil
}

// classifyError returns a *endError if the error is terminal, and a plain error if it is transient. Vault
// responds with 400 or 403 to a login that it refuses.
func (v *vault) classifyError(operation string, err error) error {
	response, ok := errors.AsType[*vaultapi.ResponseError](err)
	if !ok {
		if e, ok := errors.AsType[*endError](err); ok {
			return e
		}

		return fmt.Errorf("%s: %w", operation, err)
	}

	message := strings.Join(strings.Fields(strings.Join(response.Errors, "; ")), " ") // some errors have several lines
	message = strings.ToValidUTF8(message[:min(len(message), maxRefusalBytes)], "")
	text := fmt.Sprintf("%s: the secrets manager responded %d %s: %s", operation,
		response.StatusCode, http.StatusText(response.StatusCode), message)

	if isVaultTransient(response.StatusCode, message) {
		return errors.New(text)
	}

	return newFailure(guest.ReasonSecretsRefused, "%s", text)
}

// isVaultTransient returns whether a retry can succeed. A standby server responds with 412 if it has not
// received the login yet. Vault responds with 400 to a login if it cannot fetch the keys that verify it.
func isVaultTransient(status int, message string) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusPreconditionFailed, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusBadRequest:
		return strings.Contains(message, "fetching keys")
	default:
		return status >= http.StatusInternalServerError
	}
}
