// The limit: the dynamics of src/slipstream/dynamics/quadrotor.py by hand, for one core.
//
// Same equations, same order of integration, same constants (given on the command line), worlds as a structure of
// arrays walked in blocks that stay in the first-level cache, one SIMD lane a world.
// Prints: steps per CPU-second, and position and attitude of world 0 and of the last, to compare.
//
//   g++ -O3 -march=native -ffast-math -fopenmp-simd -o limit limit.cpp
//   ./limit WORLDS STEPS SUBSTEPS DT mass ix iy iz arm_x arm_y k_thrust k_torque lag_up lag_down rotor_inertia dx dy dz rotor_drag hover
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

constexpr int LEAVES = 17;
constexpr int BLOCK = 64;
constexpr float GRAVITY = 9.80665f;

struct Vehicle {
    float mass, ix, iy, iz, arm_x, arm_y, thrust, torque, lag_up, lag_down, rotor_inertia, dx, dy, dz, rotor_drag;
};

// One block of worlds through all substeps. s[leaf][lane], t[rotor][lane].
static void fly(float (*__restrict s)[BLOCK], const float (*__restrict t)[BLOCK], const Vehicle v, int substeps, float dt) {
    const float up = std::exp(-dt / v.lag_up), down = std::exp(-dt / v.lag_down);
    const float per_dt = 1.0f / dt;
    for (int k = 0; k < substeps; ++k) {
#pragma omp simd
        for (int i = 0; i < BLOCK; ++i) {
            float w[4], slope[4];
            for (int r = 0; r < 4; ++r) {
                const float target = t[r][i], difference = s[13 + r][i] - target;
                w[r] = target + difference * (difference < 0.0f ? up : down);
                slope[r] = (w[r] - s[13 + r][i]) * per_dt;
                s[13 + r][i] = w[r];
            }
            const float qw = s[3][i], qx = s[4][i], qy = s[5][i], qz = s[6][i];
            const float vx = s[7][i], vy = s[8][i], vz = s[9][i];
            const float p = s[10][i], q = s[11][i], r = s[12][i];
            // Airspeed in the body: rotate by the inverse quaternion.
            const float ux = -qx, uy = -qy, uz = -qz;
            float tx = 2 * (uy * vz - uz * vy), ty = 2 * (uz * vx - ux * vz), tz = 2 * (ux * vy - uy * vx);
            const float ax = vx + qw * tx + uy * tz - uz * ty;
            const float ay = vy + qw * ty + uz * tx - ux * tz;
            const float az = vz + qw * tz + ux * ty - uy * tx;
            const float speed = std::sqrt(ax * ax + ay * ay + az * az);
            const float across = v.rotor_drag * ((w[0] + w[1]) + (w[2] + w[3]));
            const float s0 = w[0] * w[0], s1 = w[1] * w[1], s2 = w[2] * w[2], s3 = w[3] * w[3];
            const float fx = -ax * (v.dx * speed + across), fy = -ay * (v.dy * speed + across);
            const float fz = v.thrust * (s0 + s1 + s2 + s3) - az * v.dz * speed;
            const float spin = -v.rotor_inertia * (w[0] - w[1] + w[2] - w[3]);
            const float mx = v.arm_y * v.thrust * (s0 - s1 + s3 - s2) - (q * v.iz * r - r * v.iy * q) - q * spin;
            const float my = v.arm_x * v.thrust * (s2 - s0 + s3 - s1) - (r * v.ix * p - p * v.iz * r) + p * spin;
            const float mz = v.torque * (s0 - s1 + s2 - s3) - (p * v.iy * q - q * v.ix * p) +
                             v.rotor_inertia * (slope[0] - slope[1] + slope[2] - slope[3]);
            // Force to the world.
            tx = 2 * (qy * fz - qz * fy), ty = 2 * (qz * fx - qx * fz), tz = 2 * (qx * fy - qy * fx);
            const float im = dt / v.mass;
            const float nvx = vx + im * (fx + qw * tx + qy * tz - qz * ty);
            const float nvy = vy + im * (fy + qw * ty + qz * tx - qx * tz);
            const float nvz = vz + im * (fz + qw * tz + qx * ty - qy * tx) - dt * GRAVITY;
            const float np = p + dt / v.ix * mx, nq = q + dt / v.iy * my, nr = r + dt / v.iz * mz;
            s[0][i] += dt * nvx, s[1][i] += dt * nvy, s[2][i] += dt * nvz;
            s[7][i] = nvx, s[8][i] = nvy, s[9][i] = nvz;
            s[10][i] = np, s[11][i] = nq, s[12][i] = nr;
            const float hx = 0.5f * dt * np, hy = 0.5f * dt * nq, hz = 0.5f * dt * nr;
            const float hw = 1.0f - 0.5f * (hx * hx + hy * hy + hz * hz);
            const float bw = qw * hw - qx * hx - qy * hy - qz * hz;
            const float bx = qw * hx + qx * hw + qy * hz - qz * hy;
            const float by = qw * hy - qx * hz + qy * hw + qz * hx;
            const float bz = qw * hz + qx * hy - qy * hx + qz * hw;
            const float scale = 1.0f / std::sqrt(bw * bw + bx * bx + by * by + bz * bz);
            s[3][i] = bw * scale, s[4][i] = bx * scale, s[5][i] = by * scale, s[6][i] = bz * scale;
        }
    }
}

static double cpu() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int count, char **given) {
    if (count != 21) return std::fprintf(stderr, "limit: expected 20 numbers\n"), 2;
    const int worlds = std::atoi(given[1]) / BLOCK * BLOCK, steps = std::atoi(given[2]), substeps = std::atoi(given[3]);
    const float dt = std::atof(given[4]);
    Vehicle v;
    for (int i = 0; i < 15; ++i) reinterpret_cast<float *>(&v)[i] = std::atof(given[5 + i]);
    const float hover = std::atof(given[20]);
    std::vector<float> state(size_t(worlds) * LEAVES), target(size_t(worlds) * 4);
    auto *s = reinterpret_cast<float(*)[LEAVES][BLOCK]>(state.data());
    auto *t = reinterpret_cast<float(*)[4][BLOCK]>(target.data());
    for (int world = 0; world < worlds; ++world) {
        const int b = world / BLOCK, i = world % BLOCK;
        for (int leaf = 0; leaf < LEAVES; ++leaf) s[b][leaf][i] = leaf == 3 ? 1.0f : leaf >= 13 ? hover : 0.0f;
        // Each world its own command, so that the worlds differ and nothing can be folded away.
        for (int r = 0; r < 4; ++r) t[b][r][i] = hover * (1.0f + 1e-3f * float((world * (r + 1)) % 7));
    }
    const double start = cpu();
    for (int step = 0; step < steps; ++step)
        for (int b = 0; b < worlds / BLOCK; ++b) fly(s[b], t[b], v, substeps, dt);
    const double spent = cpu() - start;
    std::printf("%.6g", double(worlds) * steps / spent);
    for (int world : {0, worlds - 1})
        for (int leaf = 0; leaf < 7; ++leaf) std::printf(" %.7g", s[world / BLOCK][leaf][world % BLOCK]);
    std::printf("\n");
}
