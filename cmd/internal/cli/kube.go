// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/kit/credential"
)

// callTimeout is the timeout of one call to the API server.
const callTimeout = 30 * time.Second

// Kube has the flags with which a command connects to the API server. They work as in kubectl.
type Kube struct {
	Kubeconfig, Context, Namespace string
}

// AddKubeFlags adds --kubeconfig, --context and --namespace. namespaceUsage is the help text of --namespace.
func (k *Kube) AddKubeFlags(flags *pflag.FlagSet, namespaceUsage string) {
	flags.StringVar(&k.Kubeconfig, "kubeconfig", "", "path of the kubeconfig; default: KUBECONFIG, or the pod's service account")
	flags.StringVar(&k.Context, "context", "", "context of the kubeconfig; default: the current context")
	flags.StringVarP(&k.Namespace, "namespace", "n", "", namespaceUsage)
}

// Cluster is a Kubernetes cluster to which a command connects.
type Cluster struct {
	Config *rest.Config
	// Client supports the core kinds and the kinds that were passed to Connect.
	Client client.Client
	// Namespace is the value of --namespace, or else the namespace of the context.
	Namespace string
}

// discardLogs sets the logger of controller-runtime. Without a logger, controller-runtime prints a warning
// after 30 seconds.
var discardLogs = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) }) //nolint:gochecknoglobals // so is the logger

// Connect loads the kubeconfig and returns a client for the API server. kinds register kinds in the
// client's scheme. Connect makes no call that fails if one of the kinds is not installed.
func (k *Kube) Connect(kinds ...func(*runtime.Scheme) error) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()

	if k.Kubeconfig != "" {
		if _, err := os.Stat(k.Kubeconfig); err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}

		rules.ExplicitPath = k.Kubeconfig
	}

	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.Context})

	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		if path := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); path != "" && k.Kubeconfig == "" {
			return nil, fmt.Errorf("find the API server: KUBECONFIG is %s, but this file does not exist or is empty", path)
		}

		// The error of client-go names an environment variable that is no longer in use.
		return nil, errors.New("find the API server: no kubeconfig found: set --kubeconfig or KUBECONFIG")
	}

	if err != nil {
		return nil, fmt.Errorf("find the API server: set --kubeconfig or KUBECONFIG: %w", err)
	}

	config.Timeout = callTimeout
	credential.RetryUnreadyAdmission(config)

	discardLogs()

	scheme := runtime.NewScheme()
	for _, add := range append(kinds, corev1.AddToScheme) {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}

	out := &Cluster{Config: config, Namespace: k.Namespace}

	if out.Client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("create a client for the API server: %w", err)
	}

	if out.Namespace == "" {
		if out.Namespace, _, err = loader.Namespace(); err != nil {
			return nil, fmt.Errorf("read the context's namespace: %w", err)
		}
	}

	return out, nil
}

// WithTimeout returns a context for a command that is canceled by SIGINT, by SIGTERM, or after timeout. The
// caller must call the returned function.
func WithTimeout(cmd *cobra.Command, timeout time.Duration) (context.Context, func()) {
	ctx, stop := signals.NotifyContext(cmd.Context())
	ctx, cancel := context.WithTimeout(ctx, timeout)

	return ctx, func() { cancel(); stop() }
}
