// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package shell

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/shell"
)

const (
	// attempts is how often a request is repeated, because only one replica of the operator is the leader.
	attempts      = 10
	attemptDelay  = 500 * time.Millisecond
	maxError      = 4 << 10
	maxResult     = 64 << 20
	tokenLifetime = 600 // seconds, the shortest that the API server allows
)

// options are the flags of both commands.
type options struct {
	kube                      cli.Kube
	operatorNamespace, server string
	caFile, serviceAccount    string
}

func (o *options) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.kube.AddKubeFlags(flags, "namespace of the claim; default: the namespace of the context")
	flags.StringVar(&o.operatorNamespace, "operator-namespace", "hyperfleet-system",
		"namespace of the operator's Service hyperfleet-webhooks, which is reached through the API server")
	flags.StringVar(&o.server, "server", "", "`URL` at which the operator is reached without the API server")
	flags.StringVar(&o.caFile, "server-ca", "", "`file` with the CA of --server; default: the CAs of the system")
	flags.StringVar(&o.serviceAccount, "service-account", "",
		"use a new token of this service account in the claim's namespace, for a kubeconfig with a client certificate")
}

// connection reaches one machine through the operator.
type connection struct {
	http         *http.Client
	base         string
	token, claim string
}

// connect finds the operator and the user's token.
func (o *options) connect(ctx context.Context, claim string) (*connection, error) {
	cluster, err := o.kube.Connect(v1alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}

	out := &connection{claim: claim}

	if out.token, err = o.findToken(ctx, cluster); err != nil {
		return nil, err
	}

	if o.server != "" {
		out.base = strings.TrimSuffix(o.server, "/")
		out.http, err = o.newServerClient()
	} else {
		path := "/api/v1/namespaces/" + url.PathEscape(o.operatorNamespace) + "/services/https:hyperfleet-webhooks:webhooks/proxy"
		out.base = strings.TrimSuffix(cluster.Config.Host, "/") + path
		out.http, err = newProxyClient(cluster.Config)
	}

	if err != nil {
		return nil, err
	}

	if !strings.Contains(out.base, "://") {
		out.base = "https://" + out.base
	}

	out.base += shell.Prefix + url.PathEscape(cluster.Namespace) + "/" + url.PathEscape(claim)

	return out, nil
}

// newProxyClient returns a client that reaches the operator through the API server. A connection for a console is not
// HTTP/2, and lasts.
func newProxyClient(kube *rest.Config) (*http.Client, error) {
	config := rest.CopyConfig(kube)
	config.Timeout, config.NextProtos = 0, []string{"http/1.1"}

	out, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the operator: %w", err)
	}

	return out, nil
}

// newServerClient returns a client for --server, to which the user's token is sent.
func (o *options) newServerClient() (*http.Client, error) {
	if !strings.HasPrefix(o.server, "https://") {
		return nil, cli.Usagef("--server must be an https URL, not %q", o.server)
	}

	settings := &tls.Config{MinVersion: tls.VersionTLS12}

	if o.caFile != "" {
		var err error
		if settings, err = bounds.LoadTLSConfig(o.caFile, nil); err != nil {
			return nil, fmt.Errorf("read --server-ca: %w", err)
		}
	}

	settings.NextProtos = []string{"http/1.1"}

	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: settings, DisableKeepAlives: true,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}}, nil
}

var errNoToken = errors.New("the kubeconfig has no token, but perhaps a client certificate, which the operator cannot verify: " +
	"set --service-account to a service account that may get machineclaims/shell")

// findToken returns the token with which the user authenticates at the API server, or a new one.
func (o *options) findToken(ctx context.Context, cluster *cli.Cluster) (string, error) {
	if o.serviceAccount != "" {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenLifetime))}}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: o.serviceAccount}}

		if err := cluster.Client.SubResource("token").Create(ctx, account, request, &client.SubResourceCreateOptions{}); err != nil {
			return "", fmt.Errorf("create a token of service account %s: %w", o.serviceAccount, err)
		}

		return request.Status.Token, nil
	}

	// A plugin may provide the token, so the request that client-go would send is looked at.
	seen := &headerReader{}

	wrapped, err := rest.HTTPWrappersForConfig(cluster.Config, seen)
	if err != nil {
		return "", fmt.Errorf("read the token of the kubeconfig: %w", err)
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost", http.NoBody)
	if err != nil {
		return "", err
	}

	response, err := wrapped.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("read the token of the kubeconfig: %w", err)
	}

	_ = response.Body.Close()

	if token, ok := strings.CutPrefix(seen.authorization, "Bearer "); ok {
		return token, nil
	}

	return "", errNoToken
}

// headerReader reads the header of a request, which it does not send.
type headerReader struct{ authorization string }

func (h *headerReader) RoundTrip(r *http.Request) (*http.Response, error) {
	h.authorization = r.Header.Get("Authorization")

	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// send sends a request, again if the replica is not the leader.
func (c *connection) send(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}

		request.Header = header.Clone()
		request.Header.Set(shell.TokenHeader, c.token)

		response, err := c.http.Do(request)
		if err != nil {
			return nil, fmt.Errorf("reach the operator: %w", err)
		}

		if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols {
			return response, nil
		}

		text, _ := io.ReadAll(io.LimitReader(response.Body, maxError))
		_ = response.Body.Close()

		if response.StatusCode != http.StatusServiceUnavailable || attempt == attempts {
			return nil, fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
		}

		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(attemptDelay):
		}
	}
}

// run runs a command, writes its output, and returns its exit code.
func (c *connection) run(ctx context.Context, command []string, out, errOut io.Writer) (int, error) {
	body, err := json.Marshal(shell.Command{Command: command})
	if err != nil {
		return 0, err
	}

	response, err := c.send(ctx, http.MethodPost, "/command", body, http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read

	var result shell.Result
	if err := json.NewDecoder(io.LimitReader(response.Body, maxResult)).Decode(&result); err != nil {
		return 0, fmt.Errorf("decode the operator's response: %w", err)
	}

	_, err = out.Write(result.Stdout)
	_, problemErr := errOut.Write(result.Stderr)

	return result.ExitCode, errors.Join(err, problemErr)
}

// openConsole opens the console.
func (c *connection) openConsole(ctx context.Context) (io.ReadWriteCloser, error) {
	header := http.Header{"Connection": {"Upgrade"}, "Upgrade": {shell.Protocol}}

	response, err := c.send(ctx, http.MethodGet, "/console", nil, header)
	if err != nil {
		return nil, err
	}

	stream, ok := response.Body.(io.ReadWriteCloser)
	if !ok {
		_ = response.Body.Close()

		return nil, errors.New("the operator does not open a console")
	}

	return stream, nil
}
