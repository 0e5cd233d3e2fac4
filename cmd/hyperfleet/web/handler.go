// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/html"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
)

//go:embed assets
var assets embed.FS

// Config has the dependencies and the settings of the pages.
type Config struct {
	View  *live.View
	Clock clock.PassiveClock
	// Hosts are the host names under which the pages are served, in addition to the names of this machine.
	Hosts []string
}

// handler renders the pages.
type handler struct {
	Config

	templates *template.Template
}

// page is the data for a template. The templates use the field names.
type page struct {
	// Title of the page. Area is the name of the template, and of the entry in the navigation.
	Title, Area string
	Server      string
	Namespace   string
	Now         time.Time
	// Kinds of the objects on the page. Missing has the reasons why some of them cannot be shown.
	Kinds, Missing []string
	// Live makes the browser reload the page periodically.
	Live bool
	// Filter of the list of the page; nil if the page has no list.
	Filter *filter
	Data   any
}

// errNotFound reports that a page does not exist.
var errNotFound = errors.New("the page does not exist, or its object was deleted")

// NewHandler returns a handler that serves the pages and their assets.
func NewHandler(cfg Config) (http.Handler, error) {
	h := &handler{Config: cfg}

	templates, err := template.New("").Funcs(h.templateFuncs()).ParseFS(assets, "assets/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse pages: %w", err)
	}

	h.templates = templates
	mux := http.NewServeMux()

	for pattern, render := range map[string]func(*http.Request) (*page, error){
		"GET /{$}":                         h.renderOverview,
		"GET /jobs":                        h.renderJobs,
		"GET /jobs/{namespace}/{name}":     h.renderJob,
		"GET /pools":                       h.renderPools,
		"GET /pools/{namespace}/{name}":    h.renderPool,
		"GET /machines":                    h.renderMachines,
		"GET /machines/{namespace}/{name}": h.renderMachine,
		"GET /clusters":                    h.renderClusters,
		"GET /clusters/{name}":             h.renderCluster,
		"GET /hosts":                       h.renderHosts,
		"GET /bridges":                     h.renderBridges,
	} {
		mux.Handle(pattern, h.servePage(render))
	}

	static, err := fs.Sub(assets, "assets")
	if err != nil {
		return nil, fmt.Errorf("read assets: %w", err)
	}

	for _, name := range []string{"style.css", "live.js", "icon.svg"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, static, name)
		})
	}

	mux.Handle("/", h.servePage(func(*http.Request) (*page, error) { return nil, errNotFound }))

	return guardRequests(cfg.Hosts, mux), nil
}

// servePage returns a handler that renders one page. If render returns an error, the handler serves a page that
// explains the error.
func (h *handler) servePage(render func(*http.Request) (*page, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK

		shown, err := render(r)
		if err == nil {
			err = h.checkPage(r.Context(), shown)
		}

		if err != nil {
			status, shown = newErrorPage(err)
		}

		name := shown.Area
		if status != http.StatusOK {
			name, shown.Area = "error", ""
		}

		shown.Server, shown.Namespace, shown.Now = h.View.Server, h.View.Namespace, h.Clock.Now()

		var out bytes.Buffer
		if err := h.templates.ExecuteTemplate(&out, name+".html", shown); err != nil {
			http.Error(w, fmt.Sprintf("render page: %v", err), http.StatusInternalServerError)

			return
		}

		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write(out.Bytes()) // the client may have closed the connection
	})
}

// checkPage sets the reasons why kinds of a page cannot be shown. It returns an error if the page would show nothing,
// because the namespace of the view does not exist, or because no kind can be shown.
func (h *handler) checkPage(ctx context.Context, shown *page) error {
	if err := h.View.CheckNamespace(ctx); err != nil {
		return err
	}

	shown.Missing = h.View.MissingReasons(shown.Kinds...)
	if len(shown.Missing) > 0 && len(shown.Missing) == len(shown.Kinds) {
		return h.View.Missing[shown.Kinds[0]]
	}

	return nil
}

// newErrorPage returns the status and the page for an error: 404 if an object or the namespace of the view does not
// exist, 403 if the user has no permission to read an object, and 502 otherwise.
func newErrorPage(err error) (int, *page) {
	sentence := err.Error()

	var known *apierrors.StatusError
	if errors.As(err, &known) {
		sentence = known.Error()
	}

	switch {
	case errors.Is(err, errNotFound) || apierrors.IsNotFound(err):
		return http.StatusNotFound, &page{Title: "Not found", Data: sentence}
	case apierrors.IsForbidden(err):
		return http.StatusForbidden, &page{Title: "No permission", Data: sentence}
	default:
		return http.StatusBadGateway, &page{Title: "Cannot read objects", Data: sentence}
	}
}
