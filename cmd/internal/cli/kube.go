// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
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
)

// callTimeout bounds one call.
const callTimeout = 30 * time.Second

// Kube are the flags by which a command finds the API server, as kubectl does.
type Kube struct {
	Kubeconfig, Context, Namespace string
}

// AddFlags adds them. The namespace is that of what is named, such as "the jobs".
func (k *Kube) AddFlags(flags *pflag.FlagSet, what string) {
	flags.StringVar(&k.Kubeconfig, "kubeconfig", "", "file that leads to the API server; default: KUBECONFIG, else the pod's own")
	flags.StringVar(&k.Context, "context", "", "context of the kubeconfig; default: the current one")
	flags.StringVarP(&k.Namespace, "namespace", "n", "", "namespace of "+what+"; default: that of the context")
}

// Cluster is an API server that was found.
type Cluster struct {
	Config *rest.Config
	// Client knows the core kinds, and those that were asked for.
	Client client.Client
	// Namespace is that of the flag, else that of the context.
	Namespace string
}

// quiet gives the client's library a logger: without one it complains about that, after half
// a minute.
var quiet = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) }) //nolint:gochecknoglobals // the library's logger is one, too

// Connect finds the API server. It asks it nothing that an absent kind would make fail.
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
		if named := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); named != "" && k.Kubeconfig == "" {
			return nil, fmt.Errorf("find the API server: KUBECONFIG is %s, and there is no kubeconfig", named)
		}

		// The library's words name a variable that is long out of use.
		return nil, errors.New("find the API server: there is no kubeconfig: give --kubeconfig, or set KUBECONFIG")
	}

	if err != nil {
		return nil, fmt.Errorf("find the API server: give --kubeconfig, or set KUBECONFIG: %w", err)
	}

	config.Timeout = callTimeout

	quiet()

	scheme := runtime.NewScheme()
	for _, add := range append(kinds, corev1.AddToScheme) {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}

	out := &Cluster{Config: config, Namespace: k.Namespace}

	if out.Client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}

	if out.Namespace == "" {
		if out.Namespace, _, err = loader.Namespace(); err != nil {
			return nil, fmt.Errorf("read the context's namespace: %w", err)
		}
	}

	return out, nil
}

// Bounded gives the context of one command: it ends with an interrupt, or with time.
func Bounded(cmd *cobra.Command, most time.Duration) (context.Context, func()) {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}

	ctx, stop := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, most)

	return ctx, func() { cancel(); stop() }
}
