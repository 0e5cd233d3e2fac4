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

// vault is HashiCorp Vault or OpenBao (https://developer.hashicorp.com/vault/api-docs, auth/jwt,
// auth/cert and secret/kv).
type vault struct {
	from     *guest.Secrets
	identity *identity
	redact   *redactor
	client   *vaultapi.Client
	http     *http.Client
	// after is how long Vault wants to be left alone, by its last answer.
	after time.Duration
}

// revokeTimeout bounds giving a token back.
const revokeTimeout = 5 * time.Second

func openVault(from *guest.Secrets, id *identity, redact *redactor) (*vault, error) {
	client, err := operatorClient("secrets", from.CABundle, fetchTimeout)
	if err != nil {
		return nil, err
	}

	if transport, ok := client.Transport.(*http.Transport); ok && from.Auth == guest.SecretsAuthCert {
		transport.TLSClientConfig.GetClientCertificate = id.certificate
	}

	// Tries are counted by insist. What the environment says of Vault is not meant for us.
	made, err := vaultapi.NewClient(&vaultapi.Config{Address: from.Address, HttpClient: client, MaxRetries: 0})
	if err != nil {
		return nil, fmt.Errorf("secrets.address: %w", err)
	}

	made.ClearToken()
	made.ClearNamespace()

	if from.Namespace != "" {
		made.SetNamespace(from.Namespace)
	}

	out := &vault{from: from, identity: id, redact: redact, http: client}
	out.client = made.WithResponseCallbacks(func(r *vaultapi.Response) { out.after = retryAfter(r.Header) })

	return out, nil
}

func (v *vault) close() { v.http.CloseIdleConnections() }

// read logs in anew for each try: a login is worth one read, and given back after it.
func (v *vault) read(ctx context.Context) (map[string]any, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()

	v.after = 0

	token, err := v.login(ctx)
	if err != nil {
		return nil, v.after, err
	}

	v.client.SetToken(token)

	defer v.revoke(ctx)

	secret, err := v.client.Logical().ReadWithContext(ctx, v.from.Path)
	if err != nil {
		return nil, v.after, v.judge("read "+v.from.Path, err)
	}

	data, err := v.data(secret)

	return data, 0, err
}

// login gives a token for the machine's identity.
func (v *vault) login(ctx context.Context) (string, error) {
	body := map[string]any{}

	switch v.from.Auth {
	case guest.SecretsAuthJWT:
		token, err := v.identity.jwt(ctx, v.from.Audience)
		if err != nil {
			return "", err
		}

		v.redact.hide(token)
		body["role"], body["jwt"] = v.from.Role, token
	case guest.SecretsAuthCert:
		if v.from.Role != "" {
			body["name"] = v.from.Role
		}
	}

	what := fmt.Sprintf("log in by %s as role %q", v.from.AuthMount, v.from.Role)

	got, err := v.client.Logical().WriteWithContext(ctx, "auth/"+v.from.AuthMount+"/login", body)
	if err != nil {
		return "", v.judge(what, err)
	}

	if got == nil || got.Auth == nil || got.Auth.ClientToken == "" {
		return "", failed(guest.ReasonSecretsRefused, "%s: the secrets manager gave no token for it: it must not ask for more, "+
			"such as another factor", what)
	}

	v.redact.hide(got.Auth.ClientToken)

	return got.Auth.ClientToken, nil
}

// revoke gives the token back, as far as the role lets it; it ends by itself otherwise.
func (v *vault) revoke(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()

	after := v.after
	_ = v.client.Auth().Token().RevokeSelfWithContext(ctx, "")
	v.after = after

	v.client.ClearToken()
}

// data gives the keys of a secret. KV version 2 has them below "data", beside "metadata".
func (v *vault) data(secret *vaultapi.Secret) (map[string]any, error) {
	if secret == nil {
		return nil, failed(guest.ReasonSecretMissing, "there is no secret at %s", v.from.Path)
	}

	metadata, versioned := secret.Data["metadata"].(map[string]any)
	if _, is := metadata["version"]; versioned && is {
		data, ok := secret.Data["data"].(map[string]any)
		if !ok {
			return nil, failed(guest.ReasonSecretMissing, "the last version of secret %s was deleted", v.from.Path)
		}

		return data, nil
	}

	if len(secret.Data) == 0 { // e.g. a path of KV version 2 without its data/
		return nil, failed(guest.ReasonSecretMissing, "there is no secret at %s: %s", v.from.Path, strings.Join(secret.Warnings, "; "))
	}

	return secret.Data, nil
}

// judge says what an answer means. Vault answers a login that it refuses with 400 or 403.
func (v *vault) judge(what string, err error) error {
	answer, ok := errors.AsType[*vaultapi.ResponseError](err)
	if !ok {
		if e, ok := errors.AsType[*end](err); ok {
			return e
		}

		return fmt.Errorf("%s: %w", what, err)
	}

	said := strings.Join(strings.Fields(strings.Join(answer.Errors, "; ")), " ") // some take several lines
	said = strings.ToValidUTF8(said[:min(len(said), maxRefusal)], "")
	text := fmt.Sprintf("%s: the secrets manager answered %d %s: %s", what,
		answer.StatusCode, http.StatusText(answer.StatusCode), said)

	if vaultMayPass(answer.StatusCode, said) {
		return errors.New(text)
	}

	return failed(guest.ReasonSecretsRefused, "%s", text)
}

// vaultMayPass says whether another try may help. A standby that does not know of a login
// yet answers 412; keys that cannot be fetched make a login invalid.
func vaultMayPass(status int, said string) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusPreconditionFailed, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusBadRequest:
		return strings.Contains(said, "fetching keys")
	default:
		return status >= http.StatusInternalServerError
	}
}
