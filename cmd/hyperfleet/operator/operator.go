// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/mounted"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
)

// New is the subcommand.
func New() *cobra.Command {
	var kubeconfig string

	spec := Spec()
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run the controllers",
		Long: "Run the controllers of the chosen areas against a Kubernetes API server. Settings come from\n" +
			"defaults, a file (--config, usually a ConfigMap), HYPERFLEET_* variables, and flags, in this order.\n" +
			"When a mounted ConfigMap has changed and is valid, the operator ends, to be started with it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := mounted.Beside(spec.File(cmd.Flags()), func() error { return spec.Check(cmd.Flags()) })

			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return fmt.Errorf("read configuration: %w", err)
			}

			logger, err := newLogger(config.Log)
			if err != nil {
				return err
			}

			kube, err := kubeConfig(kubeconfig)
			if err != nil {
				return err
			}

			ctx, stop := files.Until(ctrl.SetupSignalHandler(), logger)
			defer stop()

			endTracing, err := tracing.Start(ctx, tracing.Options{
				Service: "hyperfleet-operator", Version: version.Read().Version, Log: logger,
			})
			if err != nil {
				return err
			}
			defer endTracing()

			return run(ctx, *config, kube, logger)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "",
		"file that leads to the API server; default: KUBECONFIG, else the pod's own")

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		panic(err) // the configuration's type is not one that kit/strictyaml can read
	}

	settings, err := spec.Command()
	if err != nil {
		panic(err) // as above
	}

	cmd.AddCommand(settings)

	return cmd
}

// Spec is the operator's configuration.
func Spec() *strictyaml.Spec[v1alpha1.OperatorConfig] {
	return &strictyaml.Spec[v1alpha1.OperatorConfig]{
		APIVersion: v1alpha1.APIVersion,
		Kind:       v1alpha1.KindOperatorConfig,
		Default:    v1alpha1.Default(),
		EnvFile:    strictyaml.EnvPrefix + "CONFIG",
		OwnsPrefix: true,
		OtherEnv:   []string{tracing.EnvEnabled},
		Aliases:    map[string]string{"log.level": log.EnvLevel},
		Words:      []string{"DevID", "HyperShift", "MetalLB", "URLs"},
		Help:       v1alpha1.Help(),
		Validate:   validate,
	}
}

// validate checks what the types can't say. It gives all that is wrong.
func validate(cfg *v1alpha1.OperatorConfig) error {
	errs := []error{
		bridgeSettings(cfg.Bridge), hostSettings(cfg.Hosts), devIDSettings(cfg.Identity.DevID), spireSettings(cfg.Identity.SPIRE),
		intervals(*cfg), metricsSettings(cfg.Metrics), logSettings(cfg.Runners.Logs), webhookSettings(*cfg),
	}

	at := func(key string, err error) {
		if err != nil {
			errs = append(errs, strictyaml.ErrorAt(key, "%w", err))
		}
	}
	wrong := func(bad bool, key, text string) {
		if bad {
			errs = append(errs, strictyaml.ErrorAt(key, "%s", text))
		}
	}

	_, err := log.ParseLevel(cfg.Log.Level)
	at("log.level", err)

	_, err = log.ParseFormat(cfg.Log.Format)
	at("log.format", err)

	for _, area := range cfg.Controllers {
		wrong(!slices.Contains(v1alpha1.Areas(), area), "controllers",
			fmt.Sprintf("there is no area %q: choose of %v", area, v1alpha1.Areas()))
	}

	wrong(cfg.Runners.Concurrency < 1, "runners.concurrency", "it must be at least 1")
	wrong(cfg.Networking.Concurrency < 1, "networking.concurrency", "it must be at least 1")
	wrong(cfg.Namespace == "", "namespace", "it must name the namespace that the operator runs in")
	at("guest.url", guestURL(cfg.Guest.URL))

	_, err = httpbound.NewReach(cfg.Runners.PlatformURLs, nil)
	at("runners.platformURLs", err)

	_, err = httpbound.NewReach(nil, cfg.Runners.PlatformNetworks)
	at("runners.platformNetworks", err)

	return errors.Join(errs...)
}

var errGuestURL = errors.New("it must be an https URL such as https://hyperfleet.example.com:8443, " +
	"without a path: machines send a token there (http is for loopback)")

// guestURL checks what machines are told: they refuse to send their token in the clear.
func guestURL(text string) error {
	if text == "" {
		return nil
	}

	u, err := url.Parse(text)
	if err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return errGuestURL
	}

	addr, _ := netip.ParseAddr(u.Hostname())
	if u.Scheme == "https" || (u.Scheme == "http" && (addr.IsLoopback() || u.Hostname() == "localhost")) {
		return nil
	}

	return errGuestURL
}

func intervals(cfg v1alpha1.OperatorConfig) error {
	var errs []error

	for key, value := range map[string]int64{
		"runners.clusterInterval":  int64(cfg.Runners.ClusterInterval),
		"runners.templateInterval": int64(cfg.Runners.TemplateInterval),
		"runners.orphanInterval":   int64(cfg.Runners.OrphanInterval),
		"runners.taskInterval":     int64(cfg.Runners.TaskInterval),
		"runners.listInterval":     int64(cfg.Runners.ListInterval),
		"runners.jobRetention":     int64(cfg.Runners.JobRetention),
		"runners.jobSilence":       int64(cfg.Runners.JobSilence),
	} {
		if value <= 0 {
			errs = append(errs, strictyaml.ErrorAt(key, "it must be a positive duration such as 30s"))
		}
	}

	return errors.Join(errs...)
}

// newLogger writes to standard error, as every program of ours does.
func newLogger(cfg v1alpha1.Log) (*slog.Logger, error) {
	level, err := log.ParseLevel(cfg.Level)
	if err != nil {
		return nil, fmt.Errorf("set up logging: %w", err)
	}

	format, err := log.ParseFormat(cfg.Format)
	if err != nil {
		return nil, fmt.Errorf("set up logging: %w", err)
	}

	return log.New(os.Stderr, log.Options{Level: level, Format: format}), nil
}

func kubeConfig(file string) (*rest.Config, error) {
	if file == "" {
		cfg, err := ctrl.GetConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server: give --kubeconfig, or run in a pod: %w", err)
		}

		return cfg, nil
	}

	if _, err := os.Stat(file); err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}

	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", file, err)
	}

	return cfg, nil
}
